pgrx::pg_module_magic!();
pgrx::extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
