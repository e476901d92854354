// What every client program in JavaScript does: it makes itself ready, says so, and takes the turns that it is given.
//
//     {"ready": true}                                        once; or {"unavailable": why}
//     {"operations": n} -> {"seconds": s, "operations": n}   a line each, until standard input ends

import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { pathToFileURL } from 'node:url';

const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);

const explain = (error) => {
  console.error(error);
  say({ unavailable: String(error).split('\n')[0] });
  process.exit(1);
};

// Until it is ready: a package may be missing, a peer may not know this server.
process.on('uncaughtException', explain);

// The command line. `name` is of this program and run alone: it begins the ids of the sessions that it writes.
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { name: { type: 'string' }, payloads: { type: 'string' } },
});
export const [dsn, operation] = positionals;
export const { name } = values;

/** Imports a file of the packages that the benchmark has installed: import knows no search path. */
export const load = (file) => import(new URL(file, pathToFileURL(`${process.env.AGENT_SESSIONS_BENCH_NODE}/`)));

const payloads = readFileSync(values.payloads, 'utf8').trimEnd().split('\n').map((line) => JSON.parse(line));
let taken = 0;

/** The next payload as a program holds it, parsed. */
export const message = () => payloads[taken++ % payloads.length];

/** `turn(n)` does n operations; whatever came before this call is not measured. */
export async function serve(turn) {
  process.off('uncaughtException', explain);
  say({ ready: true });
  for await (const line of createInterface({ input: process.stdin })) {
    const { operations } = JSON.parse(line);
    const start = performance.now();
    await turn(operations);
    say({ seconds: (performance.now() - start) / 1e3, operations });
  }
}

