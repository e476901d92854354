//! Runs the SQL of README.md and of each page below docs/, block by block and in order, in a fresh database for each page.
//!
//! A block is what stands between "```sql" and "```". Comments in its first lines say how it is run:
//!
//! - `-- as app` runs it as the role `app`, or another of that page's own, which may connect and has what the blocks before
//!   granted to it; every other block runs as the owner of the database, who is no superuser. A role has one connection for
//!   all of its blocks, so that what one block sets holds in the next. The role's real name is one that only this run uses:
//!   the test writes it in place of `app` where that is a word of its own or quoted.
//! - `-- error: SE007` says that the block's last statement is refused with that SQLSTATE.
//! - `-- not run: why` leaves the block out; the test prints it.
//!
//! Of the blocks of shell, those run that begin with `# with` and the variables that they need: `OWNER` is the owner's role,
//! `COPY` an empty database of it. They run as the superuser, in a folder of their own, with libpq's variables for the page's
//! database.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use agent_sessions_tests::{Cluster, Connection, Database, Program, Role, Scratch, sqlstate};
use tokio_postgres::SimpleQueryMessage;

/// A page with fewer has lost its examples, or this test their marks.
const FEWEST: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Language {
    Sql,
    Shell,
}

/// How a block is run, and with which result.
#[derive(Debug, PartialEq)]
struct Block {
    line: usize,
    language: Language,
    text: String,
    role: Option<String>,
    error: Option<String>,
    not_run: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut lines = page.lines().enumerate();
    let mut blocks = Vec::new();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let inside: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| !line.trim_start().starts_with("```")).collect();
        match info.trim() {
            "sql" => blocks.push(block(number + 1, &inside)),
            "sh" if inside.first().is_some_and(|line| line.starts_with("# with ")) => blocks.push(Block {
                line: number + 1,
                language: Language::Shell,
                text: inside.join("\n"),
                role: None,
                error: None,
                not_run: None,
            }),
            _ => {}
        }
    }
    blocks
}

fn block(line: usize, inside: &[&str]) -> Block {
    let head: Vec<&str> = inside.iter().map_while(|line| line.trim().strip_prefix("--")).map(str::trim).collect();
    let said =
        |mark: &str| head.iter().find_map(|comment| comment.strip_prefix(mark)).map(|rest| rest.trim().to_owned());
    Block {
        line,
        language: Language::Sql,
        text: inside.join("\n"),
        role: said("as "),
        error: said("error:"),
        not_run: said("not run:"),
    }
}

/// Writes a role's real name in place of the page's.
fn for_role(sql: &str, name: &str, role: &str) -> String {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    let mut written = String::new();
    let mut rest = sql;
    while let Some(place) = rest.find(name) {
        let (before, after) = (&rest[..place], &rest[place + name.len()..]);
        written.push_str(before);
        written.push_str(if before.ends_with(is_part) || after.starts_with(is_part) { name } else { role });
        rest = after;
    }
    written + rest
}

/// Outside of one, a statement's time is its transaction's.
async fn is_in_transaction(connection: &Connection) -> bool {
    let answer = connection.simple_query("select now() <> statement_timestamp()").await.expect("an answer");
    answer.iter().any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t")))
}

/// A page whose blocks have run.
pub struct Page {
    pub db: Database,
    roles: BTreeMap<String, String>,
    copy: Database,
    ran: usize,
}

impl Page {
    /// Runs the page at this path of the project.
    pub async fn run(path: &str) -> Page {
        let file = project().join(path);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (left_out, run): (Vec<Block>, Vec<Block>) =
            blocks(&text).into_iter().partition(|block| block.not_run.is_some());
        let (db, copy) = (Database::empty("documentation").await, Database::empty("documentation_copy").await);
        let mut roles = BTreeMap::new();
        for name in run.iter().filter_map(|block| block.role.as_ref()) {
            if !roles.contains_key(name) {
                roles.insert(name.clone(), db.role(name, None).await);
            }
        }
        let page = Page { db, roles, copy, ran: run.len() };
        let owner = page.db.owner().await;
        let mut connections = BTreeMap::new();
        for name in page.roles.keys() {
            connections.insert(name, page.connect(name).await);
        }
        for block in &run {
            let what = format!("{path} line {}", block.line);
            match (block.language, &block.role) {
                (Language::Shell, _) => page.run_shell(&what, block).await,
                (Language::Sql, None) => page.run_sql(&what, &owner, block).await,
                (Language::Sql, Some(role)) => page.run_sql(&what, &connections[role], block).await,
            }
        }
        // The test runner keeps what println! says of a test that passes.
        let mut out = std::io::stdout().lock();
        writeln!(out, "{path}: {} blocks ran, {} were left out", run.len(), left_out.len())
            .expect("standard output is open");
        for block in &left_out {
            let why = block.not_run.as_deref().unwrap_or_default();
            assert!(!why.is_empty(), "{path} line {}: say why it is not run", block.line);
            writeln!(out, "{path} line {} is not run: {why}", block.line).expect("standard output is open");
        }
        drop(out);
        page
    }

    /// A connection as a role of the page's.
    pub async fn connect(&self, role: &str) -> Connection {
        self.db.connect(Role::Named(self.roles[role].clone())).await
    }

    async fn run_sql(&self, what: &str, connection: &Connection, block: &Block) {
        let sql = self.roles.iter().fold(block.text.clone(), |sql, (name, role)| for_role(&sql, name, role));
        match (&block.error, connection.batch_execute(&sql).await) {
            (None, Ok(())) => {}
            (Some(code), Err(error)) => assert_eq!(sqlstate(&error), code, "{what}\n{sql}\n{error:?}"),
            (Some(code), Ok(())) => panic!("{what}: {code} was expected\n{sql}"),
            (None, Err(error)) => panic!("{what}\n{sql}\n{error:?}"),
        }
        assert!(!is_in_transaction(connection).await, "{what}: its transaction is open\n{sql}");
    }

    async fn run_shell(&self, what: &str, block: &Block) {
        let folder = Scratch::new(&self.db, "shell");
        std::fs::create_dir(folder.path()).unwrap_or_else(|error| panic!("{}: {error}", folder.path()));
        let script = format!("set -eu\ncd '{}'\n{}\n", folder.path(), block.text);
        let programs = Cluster::programs();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        let shell = Program::new(Path::new("sh"))
            .pointed_at(&self.db, Role::Superuser)
            .env("PATH", &path)
            .env("COPY", &self.copy.name);
        let ran = shell.env("OWNER", &self.db.role_name(&Role::Owner)).input(script).run().await;
        assert!(ran.success, "{what}\n{}\n{}", block.text, ran.stderr);
    }
}

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_block_of_the_readme_runs() {
    let page = Page::run("README.md").await;
    assert!(page.ran >= FEWEST, "README.md has {} blocks to run", page.ran);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_block_below_docs_runs() {
    let folder = std::fs::read_dir(project().join("docs")).expect("docs/");
    let mut names: Vec<String> =
        folder.map(|entry| entry.expect("a page").file_name().into_string().expect("a name in UTF-8")).collect();
    names.sort();
    assert!(["admin.md", "guide.md"].iter().all(|name| names.iter().any(|there| there == name)), "{names:?}");
    for name in names.iter().filter(|name| *name != "plots") {
        assert!(name.ends_with(".md"), "docs/{name} is no page");
        let page = Page::run(&format!("docs/{name}")).await;
        let has_examples = ["admin.md", "guide.md"].contains(&name.as_str());
        assert!(!has_examples || page.ran >= FEWEST, "docs/{name} has {} blocks to run", page.ran);
    }
}

#[test]
fn marks_are_read_from_the_first_comments_alone() {
    let page = "text\n```sql\n-- as app\n-- error: SE007\nselect 1; -- not run: no\n```\n```sh\nselect 2\n```\n \
                ```sql\n-- not run: needs a standby\nselect 3;\n-- as app\n```\n```sh\n# with COPY\ntrue\n```\n";
    let block = |line, language, text: &str, role: Option<&str>, error: Option<&str>, not_run: Option<&str>| Block {
        line,
        language,
        text: text.to_owned(),
        role: role.map(str::to_owned),
        error: error.map(str::to_owned),
        not_run: not_run.map(str::to_owned),
    };
    let refused = "-- as app\n-- error: SE007\nselect 1; -- not run: no";
    let left_out = "-- not run: needs a standby\nselect 3;\n-- as app";
    assert_eq!(
        blocks(page),
        [
            block(2, Language::Sql, refused, Some("app"), Some("SE007"), None),
            block(10, Language::Sql, left_out, None, None, Some("needs a standby")),
            block(15, Language::Shell, "# with COPY\ntrue", None, None, None),
        ]
    );
    assert_eq!(
        for_role("grant to app; 'app' apple session_append xapp app", "app", "r"),
        "grant to r; 'r' apple session_append xapp r"
    );
}
