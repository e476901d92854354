//! The engine of `agent_sessions`: the rules, as triggers, and the functions that are the fast way to them.

pgrx::pg_module_magic!();

// The install order.
pgrx::extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
pgrx::extension_sql_file!("../sql/setting.sql", name = "setting", requires = ["schema"]);
pgrx::extension_sql_file!("../sql/tenant_binding.sql", name = "tenant_binding", requires = ["setting"]);
pgrx::extension_sql_file!("../sql/session.sql", name = "session", requires = ["tenant_binding"]);
pgrx::extension_sql_file!("../sql/session_item.sql", name = "session_item", requires = ["session"]);
pgrx::extension_sql_file!("../sql/identity.sql", name = "identity", requires = ["session_item"]);
pgrx::extension_sql_file!("../sql/rule.sql", name = "rule", requires = ["identity"]);
pgrx::extension_sql_file!("../sql/policy.sql", name = "policy", requires = ["rule"]);
pgrx::extension_sql_file!("../sql/paging.sql", name = "paging", requires = ["policy"]);
pgrx::extension_sql_file!("../sql/session_read.sql", name = "session_read", requires = ["paging"]);
pgrx::extension_sql_file!("../sql/item_read.sql", name = "item_read", requires = ["session_read"]);
pgrx::extension_sql_file!("../sql/session_write.sql", name = "session_write", requires = ["item_read"]);
pgrx::extension_sql_file!("../sql/item_write.sql", name = "item_write", requires = ["session_write"]);
pgrx::extension_sql_file!("../sql/access.sql", name = "access", requires = ["item_write"]);
pgrx::extension_sql_file!("../sql/version.sql", name = "version", requires = ["access"]);
pgrx::extension_sql_file!("../sql/ownership.sql", name = "ownership", requires = ["version"]);
pgrx::extension_sql_file!("../sql/dump.sql", name = "dump", requires = ["ownership"], finalize);
