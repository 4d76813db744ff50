// One row of the table of servers and transports, with the client of the TypeScript SDK 1 (sessions, tasks of 2025-11-25).
//
//   table_ts1.mjs URL JSON
//
// JSON is {fast: {tool, arguments, holds}, slow: {tool, arguments}, switch}. While the file `switch` is there, if it names
// one, calls are slow. Prints READY while a slow call runs, goes on when it reads a line on stdin, and then prints one
// line of facts: what `fast`, `many` (50 at once), `task`, `cancel` and `crash` came to, and `after`, a call after the crash.

import { rmSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const MANY = 50;
const RUNS_MS = 700;
// A stream with event ids is taken up by the client; at a server that has lost the session it tries in vain.
const LOST_MS = 5_000;
const TIME_LIMIT_MS = 150_000;

const [url, json] = process.argv.slice(2);
const { fast, slow, switch: file } = JSON.parse(json);

const textOf = ({ content = [] }) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');

async function drive() {
  const client = new Client({ name: 'taskgate-peer', version: '1.0.0' }, { capabilities: {} });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  await client.listTools();
  const quick = async () => {
    const result = await client.callTool({ name: fast.tool, arguments: fast.arguments });
    return !result.isError && textOf(result).includes(fast.holds);
  };
  const makeSlow = (isSlow) => file && (isSlow ? writeFileSync(file, '') : rmSync(file, { force: true }));
  const facts = { fast: await quick() };
  facts.many = (await Promise.all(Array.from({ length: MANY }, quick))).filter(Boolean).length;

  makeSlow(true);
  for await (const message of client.experimental.tasks.callToolStream({ name: slow.tool, arguments: slow.arguments })) {
    if (message.type === 'error') throw message.error;
    if (message.type === 'taskCreated') facts.task = (await client.experimental.tasks.getTask(message.task.taskId)).status;
    if (message.type === 'result') facts.task += message.result.isError ? ', failed' : ', completed';
  }
  const abort = new AbortController();
  const left = client.callTool({ name: slow.tool, arguments: slow.arguments }, undefined, { signal: abort.signal });
  const seen = left.then(() => 'answered', () => 'cancelled');
  await sleep(RUNS_MS);
  abort.abort('no longer needed');
  facts.cancel = await seen;
  const lost = client.callTool({ name: slow.tool, arguments: slow.arguments }, undefined, { timeout: LOST_MS }).then(
    () => 'answered',
    (error) => error.data?.reason ?? String(error),
  );
  await sleep(RUNS_MS);
  console.log('READY');
  await new Promise((go) => createInterface({ input: process.stdin }).once('line', go).once('close', go));
  facts.crash = await lost;
  makeSlow(false);
  facts.after = await quick();
  await client.close();
  return facts;
}

const late = sleep(TIME_LIMIT_MS, { error: `no end within ${TIME_LIMIT_MS} ms` });
const facts = await Promise.race([drive().catch((error) => ({ error: String(error) })), late]);
console.log(JSON.stringify({ client: 'ts1', ...facts }));
process.exit(0);
