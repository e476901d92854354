//! Every function is called by every role, and with NULL for every argument.

use std::collections::{BTreeMap, BTreeSet};

use agent_sessions_tests::{Database, sqlstate};

use super::attempts::Attempt;
use super::functions::{FUNCTIONS, Function};
use super::{Level, with_a_session};

impl Function {
    /// The call, with a value for each argument by name.
    pub fn call(&self, value: impl Fn(&str, &str) -> String) -> String {
        let given: Vec<String> =
            self.arguments.iter().map(|(name, usual)| format!("{name} => {}", value(name, usual))).collect();
        // A trigger's function is nobody's to call, not even in FROM.
        let from = if self.caller == Level::Nobody { "" } else { "* from " };
        format!("select {from}agent_sessions.{}({})", self.name, given.join(", "))
    }

    /// The call with the values that are accepted.
    pub fn usual_call(&self, role: &str) -> String {
        self.call(|_, value| value.replace("{role}", role))
    }
}

/// A call of each function with all of its arguments.
pub fn attempts(role: &str) -> Vec<Attempt> {
    let called =
        |function: &Function| Attempt::new(format!("`{}`", function.name), function.usual_call(role), function.caller);
    FUNCTIONS.iter().map(called).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_function_takes_every_argument_by_name() {
    let db = Database::create("roles_functions").await;
    let sql = "select p.proname::text, coalesce(p.proargnames[:p.pronargs], '{}')::text[], p.proisstrict
               from pg_proc p where p.pronamespace = 'agent_sessions'::regnamespace";
    let mut unlisted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in db.superuser().await.query(sql, &[]).await.expect("the functions") {
        let name: String = row.get(0);
        assert!(!row.get::<_, bool>(2), "{name} is STRICT");
        let arguments: Vec<String> = row.get(1);
        assert!(unlisted.insert(name.clone(), arguments.into_iter().collect()).is_none(), "{name} is overloaded");
    }
    for function in FUNCTIONS {
        let name = function.name;
        let arguments = unlisted.remove(name).unwrap_or_else(|| panic!("{name} is not in the schema"));
        let listed: BTreeSet<String> = function.arguments.iter().map(|(argument, _)| argument.to_string()).collect();
        assert_eq!(listed, arguments, "the arguments of {name}");
    }
    assert!(unlisted.is_empty(), "functions without an entry in FUNCTIONS: {unlisted:?}");
}

/// NULL means not given, for every argument; what must be given is SE001.
#[tokio::test(flavor = "multi_thread")]
async fn every_function_takes_null_for_every_argument() {
    let db = Database::create("roles_nulls").await;
    with_a_session(&db.writer().await).await;
    let owner = db.owner().await;
    for function in FUNCTIONS.iter().filter(|function| function.caller != Level::Nobody) {
        let call = function.call(|_, _| "null".to_owned());
        owner.begin("read committed").await;
        let called = owner.batch_execute(&call).await;
        owner.rollback().await;
        assert_eq!(called.as_ref().err().map(sqlstate), function.all_null, "{call}: {called:?}");
    }
}
