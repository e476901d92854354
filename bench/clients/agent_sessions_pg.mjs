// What noetaris' `save` does, by agent_sessions and node-postgres: the whole run becomes an entry of its session, at the
// position that is its version, or is refused because another run was there before. All runs stay.
//
//     noetaris                                            agent_sessions
//     (agent_id, session_id)                              (agent_id, session_id)
//     version, one more than the stored one               expected_position, the next free one
//     run_id, which branch() looks for                    item_id, unique in its session
//     run, text                                           payload, json
//
// save        as node-postgres does it by itself: every call is parsed and planned anew, as noetaris' statements are
// save_named  as a prepared statement, which node-postgres makes of one that has a name

import { SESSIONS, run } from './runs.mjs';
import { dsn, load, operation, serve } from './turns.mjs';

const { default: pg } = await load('pg/esm/index.mjs');

const SAVE = `
  select agent_sessions.session_append(session_id => $1, payload => $2::text::json, kind => 'run', item_id => $3,
    expected_position => $4, on_missing => 'create', agent_id => $5)`;

const statement = operation === 'save_named' ? { name: 'save', text: SAVE } : { text: SAVE };
const client = new pg.Client({ connectionString: dsn });
await client.connect();

const save = async (operations) => {
  for (let n = 0; n < operations; n++) {
    const one = run();
    const values = [one.sessionId, JSON.stringify(one), one.runId, one.version, one.agentId];
    await client.query({ ...statement, values });
  }
};

await save(SESSIONS);
await serve(save);
await client.end();
