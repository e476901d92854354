// Prints the SQL by which Emmett makes its tables and functions.
const { createRequire } = require("node:module");

const emmett = createRequire(`${process.argv[2]}/`)("@event-driven-io/emmett-postgresql");
const store = emmett.getPostgreSQLEventStore("postgresql://nowhere");
process.stdout.write(store.schema.sql());
store.close();
