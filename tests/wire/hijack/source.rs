//! The engine's statements name every object, operator and type with its schema. What runs among the shadows proves it of the
//! statements that the tests reach, this of all that there are.

use std::path::{Path, PathBuf};

/// Words that may stand before a parenthesis without being a function, or that are syntax of PostgreSQL's own.
const SYNTAX: &str = "select insert update delete from where and or not exists any all array row rows case when then else end as on \
    lateral filter over by with union join conflict set values coalesce greatest least returning returns into grouping";

/// What may follow FROM, JOIN, INTO and UPDATE instead of a relation.
const NO_RELATION: &str = "lateral rows set skip of select limit";

/// Syntax that looks an operator up by its bare name.
const HIDDEN_OPERATORS: &str = "like ilike similar between nullif natural overlaps";

fn is_one_of(word: &str, words: &str) -> bool {
    words.split_whitespace().any(|one| one == word)
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the engine's sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The string literals of a Rust file.
fn literals(source: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '\'', '/']) {
        let (mark, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        rest = match mark {
            b'/' if after.starts_with('/') => after.split_once('\n').map_or("", |(_, next)| next),
            // A character; anything else is the beginning of a lifetime.
            b'\'' if after.starts_with("\\'") || after.starts_with("\"'") => &after[2..],
            b'"' => {
                let (literal, next) = literal(after);
                literals.push(literal);
                next
            }
            _ => after,
        };
    }
    literals
}

/// A literal from behind its first quote, and what follows it.
fn literal(source: &str) -> (String, &str) {
    let mut text = String::new();
    let mut rest = source;
    loop {
        let at = rest.find(['"', '\\']).expect("a literal ends");
        text.push_str(&rest[..at]);
        if rest.as_bytes()[at] == b'"' {
            return (text, &rest[at + 1..]);
        }
        let escaped = &rest[at + 1..];
        rest = match escaped.as_bytes()[0] {
            b'\n' => escaped.trim_start(),
            _ => {
                text.push(' ');
                &escaped[1..]
            }
        };
    }
}

fn is_statement(text: &str) -> bool {
    ["select ", "insert into ", "update agent", "delete from ", " where ", "operator(", " and ", "pg_catalog."]
        .iter()
        .any(|mark| text.contains(mark))
        && text.contains(' ')
}

/// Words, runs of symbols, and parentheses and commas one by one; constants are left out, and operators with a schema.
fn tokens(sql: &str) -> Vec<String> {
    let without_constants: String = sql.split('\'').step_by(2).collect::<Vec<_>>().join(" _ ");
    let mut text = without_constants;
    while let Some(at) = text.find("operator(pg_catalog.") {
        let end = at + text[at..].find(')').expect("an operator ends");
        text.replace_range(at..=end, " ; ");
    }
    let kind = |character: char| match character {
        character if character.is_alphanumeric() || "_.$".contains(character) => 0,
        character if character.is_whitespace() => 1,
        '(' | ')' | ',' | ';' | '[' | ']' | '{' | '}' => 2,
        _ => 3,
    };
    let mut tokens: Vec<String> = Vec::new();
    let mut last = 1;
    for character in text.chars() {
        let this = kind(character);
        if this != 1 {
            if this == last && this != 2 {
                tokens.last_mut().expect("a token was begun").push(character);
            } else {
                tokens.push(character.to_string());
            }
        }
        last = this;
    }
    tokens
}

/// What a statement leaves to the search path.
fn unqualified(sql: &str) -> Vec<String> {
    let tokens = tokens(sql);
    let at = |index: usize| tokens.get(index).map_or("", String::as_str);
    let before = |index: usize, by: usize| index.checked_sub(by).map_or("", at);
    let is_word = |token: &str| token.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    let named_here: Vec<&str> =
        (0..tokens.len()).filter(|index| is_one_of(before(*index, 1), "recursive with as")).map(at).collect();
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let (token, next) = (token.as_str(), at(index + 1));
        let bare = |word: &str| is_word(word) && !word.contains('.') && !named_here.contains(&word);
        if next == "(" && bare(token) && !is_one_of(token, SYNTAX) {
            found.push(format!("calls {token}"));
        }
        if is_one_of(token, "from join into update") && bare(next) && !is_one_of(next, NO_RELATION) {
            found.push(format!("{token} {next}"));
        }
        if token == "::" && !next.starts_with("pg_catalog.") {
            found.push(format!("casts to {next}"));
        }
        let is_hidden = is_one_of(token, HIDDEN_OPERATORS)
            || (token == "distinct" && is_one_of(before(index, 1), "is not"))
            || (is_one_of(token, "in using") && next == "(")
            || (token == "case" && next != "when");
        if is_hidden {
            found.push(format!("{token} {next}"));
        }
        let is_assignment = token == "=" && is_one_of(before(index, 2), "set ,");
        let is_star = token == "*" && (before(index, 1).ends_with('.') || (before(index, 1) == "(" && next == ")"));
        let is_symbol = token.chars().all(|character| "<>=~!@#%^&|`?+*/-".contains(character));
        if is_symbol && !is_assignment && !is_star && token != "=>" {
            found.push(format!("{} {token} {next}", before(index, 1)));
        }
    }
    found
}

#[test]
fn statements_leave_nothing_to_a_search_path() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src"), &mut files);
    let mut statements = 0;
    let mut faults = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).expect("a source");
        for literal in literals(&source).iter().filter(|literal| is_statement(literal)) {
            statements += 1;
            let left = unqualified(literal);
            if !left.is_empty() {
                faults.push(format!("{}: {left:?} in\n  {literal}", file.display()));
            }
        }
    }
    assert!(statements > 100, "only {statements} statements were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_left_to_a_search_path_is_noticed() {
    for sql in [
        "select now()",
        "select pg_catalog.max(a) from session",
        "select from agent_sessions.session s join session_item i on true",
        "insert into session_item (sid) values ($1)",
        "update session set title = $1",
        "select from agent_sessions.session s where s.sid = $1",
        "select from agent_sessions.session s where s.sid operator(pg_catalog.=) $1 + 1",
        "update agent_sessions.session set revision = revision + 1",
        "select $1::text",
        "select '1'::agent_sessions.item_row",
        "select a is distinct from b",
        "select from agent_sessions.session where sid in (1, 2)",
        "select case a when 1 then 2 end",
        "select from agent_sessions.session where title like 'x'",
        "select from agent_sessions.session join agent_sessions.session_item using (sid)",
        "with other (a) as (select 1) select from missing",
        "select -a from agent_sessions.session",
    ] {
        assert!(!unqualified(sql).is_empty(), "{sql}");
    }
    for sql in [
        "with recursive up (sid) as (select $1) select u.sid from up u where u.sid operator(pg_catalog.<) any ($2)",
        "update agent_sessions.session set title = $1, state = coalesce($2, state) where sid operator(pg_catalog.=) $3 returning revision",
        "select pg_catalog.count(*), i.* from rows from (pg_catalog.unnest($1)) as i (a) order by 1 for no key update skip locked",
        "select g.title from agent_sessions.session_get(tenant => $1) g where g.title operator(pg_catalog.=) 'a = b'",
    ] {
        assert!(unqualified(sql).is_empty(), "{sql}: {:?}", unqualified(sql));
    }
}
