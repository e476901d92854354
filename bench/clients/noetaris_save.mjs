// noetaris: `save` of its PostgreSQL store. The store imports only types of the package that is not published.

import { SESSIONS, run } from './runs.mjs';
import { dsn, load, serve } from './turns.mjs';

const { default: pg } = await load('pg/esm/index.mjs');
const { PostgresSessionStore } = await load('../alone/node_modules/@noetaris/harness-store-postgres/dist/index.js');

const store = new PostgresSessionStore({ pool: new pg.Pool({ connectionString: dsn, max: 1 }) });
await store.migrate();

const save = async (operations) => {
  for (let n = 0; n < operations; n++) {
    const one = run();
    await store.save(one.agentId, one.sessionId, one);
  }
};

await save(SESSIONS);
await serve(save);
process.exit();
