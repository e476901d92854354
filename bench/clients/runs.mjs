// The runs of an agent, as noetaris keeps them: each has the state before and after it, and the version that follows the last.

import { randomUUID } from 'node:crypto';

import { message, name } from './turns.mjs';

/** What a program has open at a time; each of the sessions gets a run in turn. */
export const SESSIONS = 100;

const sessions = Array.from({ length: SESSIONS }, (_, number) => ({
  sessionId: `${name} ${number}`, version: 0, finalState: message(),
}));
let taken = 0;

/** The next run that is to be saved. */
export function run() {
  const session = sessions[taken++ % SESSIONS];
  const initialState = session.finalState;
  session.finalState = message();
  const now = new Date().toISOString();
  return {
    agentId: 'bench', runId: randomUUID(), sessionId: session.sessionId, version: session.version++, phase: 'completed',
    initialState, finalState: session.finalState, startedAt: now, settledAt: now,
  };
}
