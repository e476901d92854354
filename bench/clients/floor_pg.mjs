// The least that any store of runs does, by node-postgres: one row of one table, by a prepared statement, with nothing to look up
// and nothing to refuse.

import { run } from './runs.mjs';
import { dsn, load, name, serve } from './turns.mjs';

const { default: pg } = await load('pg/esm/index.mjs');

const INSERT = `
  insert into floor.session_item (sid, position, tenant, agent_id, op, kind, item_id, payload, salt, content_digest, digest, created_at)
  values ($1, $2, '', $3, 'append', 'run', $4, $5, gen_random_uuid(), sha256('content'), sha256('entry'), clock_timestamp())`;

const client = new pg.Client({ connectionString: dsn });
await client.connect();

// A log for each client: positions need no look at the last one.
const sid = Number(name.split(' ').at(-1));
let position = 0;

await serve(async (operations) => {
  for (let n = 0; n < operations; n++) {
    const one = run();
    const values = [sid, position++, one.agentId, one.runId, JSON.stringify(one)];
    await client.query({ name: 'save', text: INSERT, values });
  }
});
await client.end();
