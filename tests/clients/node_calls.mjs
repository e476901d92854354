// The call form of the documentation, from node-postgres: JSON goes in as $n::text::json and comes out as ::text.
//
// Reads a JSON array of payloads from standard input, sends each of them by plain and by named statements, and exits with
// 1 if anything comes back changed. libpq's variables name the database; AGENT_SESSIONS_NODE_MODULES has `pg`.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const { Client } = createRequire(`${process.env.AGENT_SESSIONS_NODE_MODULES}/`)('pg');

const APPEND = `
  select agent_sessions.session_append(session_id => $1, payload => $2::text::json, kind => $3, item_id => $4,
    attrs => $5::text::jsonb, expected_position => $6, on_missing => 'create') as position`;
const BATCH = `
  select ordinal, position, outcome
  from agent_sessions.session_append_batch(session_id => $1, items => $2::text::json, on_missing => 'create')`;
const SET = `
  select agent_sessions.session_set(session_id => $1, state => $2::text::json, metadata => $3::text::jsonb) as revision`;
const GET = `
  select state::text, metadata::text, revision from agent_sessions.session_get(session_id => $1)`;
const HISTORY = `
  select position, payload::text, kind, attrs::text
  from agent_sessions.session_history(session_id => $1, after => $2, max_rows => $3, kinds => $4::text[])`;
const IN_TENANT = `
  select agent_sessions.session_append(session_id => $1, payload => '1', on_missing => 'create') as position
  from agent_sessions.tenant_use($2)`;
const READ_IN_TENANT = `
  select h.payload::text from agent_sessions.tenant_use($1) t,
    lateral agent_sessions.session_history(session_id => $2, tenant => t) h`;

async function calls(query, session, payloads) {
  for (const [position, payload] of payloads.entries()) {
    const { rows } = await query(APPEND, [session, payload, 'message', `item ${position}`, '{"k": 1}', position]);
    assert.deepEqual(rows, [{ position: String(position) }]);
  }
  const history = await query(HISTORY, [session, null, null, ['message']]);
  const expected = payloads.map((payload, position) => ({
    position: String(position), payload, kind: 'message', attrs: '{"k": 1}',
  }));
  assert.deepEqual(history.rows, expected);
  const page = await query(HISTORY, [session, 0, 1, null]);
  assert.deepEqual(page.rows, expected.slice(1, 2));

  const items = `[${payloads.map((payload) => `{"payload":${payload},"kind":"batch"}`).join(',')}]`;
  const batch = await query(BATCH, [session, items]);
  assert.deepEqual(batch.rows, payloads.map((_, ordinal) => ({
    ordinal, position: String(payloads.length + ordinal), outcome: 'appended',
  })));
  const values = await query(HISTORY, [session, null, null, ['batch']]);
  assert.deepEqual(values.rows.map((row) => row.payload), payloads.map((payload) => payload.replace(/^[ \t\r\n]+|[ \t\r\n]+$/g, '')));

  for (const [place, payload] of payloads.entries()) {
    const revision = String(place + 1);
    const set = await query(SET, [session, payload, JSON.stringify({ n: place })]);
    assert.deepEqual(set.rows, [{ revision }]);
    const got = await query(GET, [session]);
    assert.deepEqual(got.rows, [{ state: payload, metadata: `{"n": ${place}}`, revision }]);
  }

  const written = await query(IN_TENANT, [session, 'node']);
  assert.deepEqual(written.rows, [{ position: '0' }]);
  const read = await query(READ_IN_TENANT, ['node', session]);
  assert.deepEqual(read.rows, [{ payload: '1' }]);

  await assert.rejects(query(APPEND, [session, '{}', null, null, null, 0]), (error) => {
    assert.equal(error.code, 'SE007');
    const detail = JSON.parse(error.detail);
    assert.equal(detail.expected, 0);
    assert.equal(detail.actual, 2 * payloads.length);
    return true;
  });
}

const payloads = JSON.parse(readFileSync(0, 'utf8'));
const client = new Client();
await client.connect();
const ways = {
  plain: (text, values) => client.query(text, values),
  named: (text, values) => client.query({ name: `statement ${text.length} ${text.slice(3, 40)}`, text, values }),
};
for (const [way, query] of Object.entries(ways)) {
  await calls(query, `node, ${way}`, payloads);
}
await client.end();
console.log(JSON.stringify({ ways: Object.keys(ways).length, payloads: payloads.length }));
