//! Every statement on every relation, and what belongs to the owner of the objects alone.

use std::collections::BTreeSet;

use agent_sessions_tests::{Cluster, Connection, Database};

use super::Level::{self, Owner, Reader};
use super::attempts::Attempt;
use super::relations::{Column, Kind, RELATIONS, Relation};
use super::{everybody, list};

/// The values that stand for what the relations are about.
pub struct Places {
    pub sid: i64,
    pub streamed: i64,
    pub role: String,
}

impl Places {
    fn fill(&self, sql: &str) -> String {
        sql.replace("{sid}", &self.sid.to_string())
            .replace("{streamed}", &self.streamed.to_string())
            .replace("{role}", &self.role)
    }
}

impl Relation {
    /// Every statement on the relation, column by column where privileges are.
    pub async fn attempts(&self, superuser: &Connection, places: &Places) -> Vec<Attempt> {
        let name = format!("agent_sessions.{}", self.name);
        let attempts = match self.kind {
            Kind::Table => self.on_a_table(&name, &primary_key(superuser, &name).await),
            Kind::View => self.on_a_view(&name, &first_column(superuser, &name).await),
            Kind::Sequence => vec![
                Attempt::new("SELECT", format!("select last_value from {name}"), self.select),
                Attempt::new("`nextval`", format!("select nextval('{name}')"), Owner),
                Attempt::new("`setval`", format!("select setval('{name}', 1000)"), Owner),
            ],
            Kind::Type => vec![Attempt::new("a column of it", format!("create table own.made (it {name})"), Owner)],
        };
        attempts.into_iter().map(|attempt| Attempt { sql: places.fill(&attempt.sql), ..attempt }).collect()
    }

    fn on_a_table(&self, name: &str, key: &str) -> Vec<Attempt> {
        let mut attempts = vec![
            Attempt::new("SELECT", format!("select * from {name}"), self.select),
            // A row lock is a write.
            Attempt::new("SELECT FOR UPDATE", format!("select * from {name} for update"), self.updated()),
        ];
        attempts.extend(self.columns.iter().map(|column| {
            let given: Vec<&Column> =
                self.columns.iter().filter(|other| other.required || other.name == column.name).collect();
            let names: Vec<&str> = given.iter().map(|column| column.name).collect();
            let values: Vec<&str> = given.iter().map(|column| column.value).collect();
            // Who may not give a required column may give none.
            let allowed = given.iter().map(|column| column.insert).max().unwrap_or(Owner);
            let sql = format!("insert into {name} ({}) values ({})", names.join(", "), values.join(", "));
            Attempt::new(format!("INSERT `{}`", column.name), sql, allowed)
        }));
        attempts.extend(self.columns.iter().map(|column| {
            let sql = format!("update {name} set {} = {}", column.name, column.changed);
            Attempt::new(format!("UPDATE `{}`", column.name), sql, column.update)
        }));
        attempts.extend([
            Attempt::new("DELETE", format!("delete from {name}"), self.delete),
            Attempt::new("TRUNCATE", format!("truncate {name}"), Owner),
            Attempt::new("REFERENCES", references(name, key), Owner),
            Attempt::new(
                "TRIGGER",
                format!("create trigger mine before insert on {name} for each row execute function own.pass()"),
                Owner,
            ),
        ]);
        attempts
    }

    fn on_a_view(&self, name: &str, column: &str) -> Vec<Attempt> {
        let trigger =
            format!("create trigger mine instead of insert on {name} for each row execute function own.pass()");
        vec![
            Attempt::new("SELECT", format!("select * from {name}"), self.select),
            Attempt::new("INSERT", format!("insert into {name} default values"), Owner).on_a_view(),
            Attempt::new("UPDATE", format!("update {name} set {column} = {column}"), Owner).on_a_view(),
            Attempt::new("DELETE", format!("delete from {name}"), Owner).on_a_view(),
            Attempt::new("TRIGGER", trigger, Owner),
        ]
    }

    /// From which level on any column is changed.
    fn updated(&self) -> Level {
        self.columns.iter().map(|column| column.update).min().unwrap_or(Owner)
    }
}

/// The primary key's columns, each with its type.
async fn primary_key(superuser: &Connection, name: &str) -> String {
    let sql = format!(
        "select string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' order by array_position(indkey::int2[], attnum))
         from pg_index join pg_attribute on attrelid = indrelid and attnum = any (indkey)
         where indrelid = '{name}'::regclass and indisprimary"
    );
    superuser.value(&sql, &[]).await
}

async fn first_column(superuser: &Connection, name: &str) -> String {
    let sql = format!("select attname::text from pg_attribute where attrelid = '{name}'::regclass and attnum = 1");
    superuser.value(&sql, &[]).await
}

/// A table of one's own whose rows are to exist in the other.
fn references(name: &str, key: &str) -> String {
    let columns: Vec<&str> = key.split(", ").filter_map(|column| column.split(' ').next()).collect();
    format!("create table own.referring ({key}, foreign key ({}) references {name})", columns.join(", "))
}

/// What no grant gives.
pub fn on_the_schema() -> Vec<Attempt> {
    [
        ("use the schema", "select 'agent_sessions.session'::regclass, count(*) from agent_sessions.session", Reader),
        ("make a table in it", "create table agent_sessions.made ()", Owner),
        (
            "make a function in it",
            "create function agent_sessions.made() returns int language sql as 'select 1'",
            Owner,
        ),
        ("drop it", "drop schema agent_sessions cascade", Owner),
        ("alter a table", "alter table agent_sessions.session add made int", Owner),
        ("switch a trigger off", "alter table agent_sessions.session_item disable trigger link", Owner),
        ("switch row-level security off", "alter table agent_sessions.session disable row level security", Owner),
        ("make a policy", "create policy mine on agent_sessions.session using (true)", Owner),
        ("comment on a table", "comment on table agent_sessions.session is 'mine'", Owner),
        ("alter a function in SQL", "alter function agent_sessions.session_get(text, text, text) volatile", Owner),
        (
            "alter a function in C",
            "alter function agent_sessions.session_delete(text, text, text, text) stable",
            Level::Nobody,
        ),
        ("drop the extension", "drop extension agent_sessions cascade", Owner),
    ]
    .map(|(what, sql, level)| Attempt::new(what, sql, level))
    .into()
}

/// The privileges as the catalogs have them, those that no statement of the page needs included.
#[tokio::test(flavor = "multi_thread")]
async fn every_relation_has_its_privileges() {
    let db = Database::create("roles_relations").await;
    let superuser = db.superuser().await;
    let everybody = everybody(&db).await;
    let mut unlisted: BTreeSet<String> = list(
        &superuser,
        "select case relkind when 'r' then 'Table' when 'v' then 'View' when 'S' then 'Sequence' when 'c' then 'Type'
           else relkind::text end || ' ' || relname
         from pg_class where relnamespace = 'agent_sessions'::regnamespace and relkind not in ('i', 'I', 't')",
    )
    .await
    .into_iter()
    .collect();
    let mut whole = vec!["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"];
    if Cluster::major() >= 17 {
        whole.push("MAINTAIN");
    }
    for relation in RELATIONS {
        let name = format!("agent_sessions.{}", relation.name);
        let listed = format!("{:?} {}", relation.kind, relation.name);
        assert!(unlisted.remove(&listed), "{listed} is not in the schema");
        let columns = format!(
            "select attname::text from pg_attribute
             where attrelid = '{name}'::regclass and attnum > 0 and not attisdropped"
        );
        if relation.kind == Kind::Table {
            let listed: BTreeSet<String> = relation.columns.iter().map(|column| column.name.to_owned()).collect();
            assert_eq!(listed, list(&superuser, &columns).await.into_iter().collect(), "the columns of {name}");
        }
        for somebody in &everybody {
            let (role, title) = (&somebody.role, somebody.title);
            let holds = |function: &str, privileges: &[&str]| {
                format!(
                    "select p from unnest(array['{}']) p where {function}('{role}', '{name}', p)",
                    privileges.join("','")
                )
            };
            let owned =
                |privileges: &[&'static str]| if somebody.may(Owner) { privileges.to_vec() } else { Vec::new() };
            let (sql, wanted): (String, Vec<&str>) = match relation.kind {
                Kind::Type => (holds("has_type_privilege", &["USAGE"]), owned(&["USAGE"])),
                Kind::Sequence => {
                    let privileges = ["USAGE", "SELECT", "UPDATE"];
                    (holds("has_sequence_privilege", &privileges), owned(&privileges))
                }
                Kind::Table | Kind::View => {
                    let held = |privilege: &&str| match *privilege {
                        "SELECT" => somebody.may(relation.select),
                        "DELETE" => somebody.may(relation.delete),
                        _ => somebody.may(Owner),
                    };
                    (holds("has_table_privilege", &whole), whole.iter().copied().filter(held).collect())
                }
            };
            let held: BTreeSet<String> = list(&superuser, &sql).await.into_iter().collect();
            assert_eq!(held, wanted.iter().map(|p| p.to_string()).collect(), "{title} on {name}");
            if relation.kind != Kind::Table {
                continue;
            }
            type Wanted = fn(&Column) -> Level;
            let by_column: [(&str, Wanted); 3] =
                [("INSERT", |column| column.insert), ("UPDATE", |column| column.update), ("REFERENCES", |_| Owner)];
            for (privilege, level) in by_column {
                let sql = format!("{columns} and has_column_privilege('{role}', attrelid, attnum, '{privilege}')");
                let held: BTreeSet<String> = list(&superuser, &sql).await.into_iter().collect();
                let wanted = relation.columns.iter().filter(|column| somebody.may(level(column)));
                let wanted: BTreeSet<String> = wanted.map(|column| column.name.to_owned()).collect();
                assert_eq!(held, wanted, "{privilege} of {title} on columns of {name}");
            }
        }
    }
    assert!(unlisted.is_empty(), "relations without an entry in RELATIONS: {unlisted:?}");
    for somebody in &everybody {
        let sql = format!(
            "select p from unnest(array['USAGE', 'CREATE']) p where has_schema_privilege('{}', 'agent_sessions', p)",
            somebody.role
        );
        let wanted: &[&str] = match somebody.level {
            Some(Owner) => &["USAGE", "CREATE"],
            Some(_) => &["USAGE"],
            None => &[],
        };
        assert_eq!(list(&superuser, &sql).await, wanted, "{} on the schema", somebody.title);
    }
}
