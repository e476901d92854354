// What noetaris' `save` does, by agent_sessions and node-postgres: the whole run becomes an entry of its session, at the
// position that is its version, or is refused because another run was there before. All runs stay.
//
//     noetaris                                            agent_sessions
//     (agent_id, session_id)                              (agent_id, session_id)
//     version, one more than the stored one               expected_position, the next free one
//     run_id, which branch() looks for                    item_id, unique in its session
//     run, text                                           payload, json

import { SESSIONS, run } from './runs.mjs';
import { dsn, load, serve } from './turns.mjs';

const { default: pg } = await load('pg/esm/index.mjs');

const SAVE = `
  select agent_sessions.session_append(session_id => $1, payload => $2::text::json, kind => 'run', item_id => $3,
    expected_position => $4, on_missing => 'create', agent_id => $5)`;

const client = new pg.Client({ connectionString: dsn });
await client.connect();

const save = async (operations) => {
  for (let n = 0; n < operations; n++) {
    const one = run();
    await client.query(SAVE, [one.sessionId, JSON.stringify(one), one.runId, one.version, one.agentId]);
  }
};

await save(SESSIONS);
await serve(save);
await client.end();
