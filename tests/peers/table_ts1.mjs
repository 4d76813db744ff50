// One row of the table of servers and transports, with the client of the TypeScript SDK 1 (sessions, tasks of 2025-11-25).
//
//   table_ts1.mjs URL JSON
//
// JSON is {fast: {tool, arguments, holds}, slow: {tool, arguments, seconds}, held, is_resumable, switch}; `held` is like `slow`,
// for calls that are cancelled or lost. If it names a file `switch`, calls are delayed by the seconds in that file. Prints READY
// while a held call runs, continues when it reads a line on stdin, and then prints one line of facts: the outcomes of `fast`,
// `many` (50 at once), `task`, `cancel` and `crash`, and of `after`, a call after the crash.

import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const MANY = 50;
const LOOK_MS = 50;
const TIME_LIMIT_MS = 150_000;
// The client resumes a stream with event ids; at a server that has lost the session its tries are in vain.
const IN_VAIN_MS = 5_000;

const [url, json] = process.argv.slice(2);
const { fast, slow, held, is_resumable: isResumable, switch: file } = JSON.parse(json);

const textOf = ({ content = [] }) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');

async function drive() {
  const client = new Client({ name: 'taskgate-peer', version: '1.0.0' }, { capabilities: {} });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  await client.listTools();
  const quick = async () => {
    const result = await client.callTool({ name: fast.tool, arguments: fast.arguments });
    return !result.isError && textOf(result).includes(fast.holds);
  };
  const makeSlow = ({ seconds }) => file && writeFileSync(file, `${seconds}\n`);
  /** Makes a held call, and resolves once it has begun: the server reports progress, or the delay has begun. */
  const hold = async (options) => {
    makeSlow(held);
    let [hasBegun, hasEnded] = [false, false];
    const onprogress = () => { hasBegun = true; };
    const call = client.callTool({ name: held.tool, arguments: held.arguments }, undefined, { onprogress, ...options });
    const end = call.then(() => 'answered', (error) => error.data?.reason ?? String(error)).finally(() => { hasEnded = true; });
    while (!hasEnded && !(file ? readFileSync(file, 'utf8').includes('waits') : hasBegun)) await sleep(LOOK_MS);
    return { end };
  };
  const facts = { fast: await quick() };
  facts.many = (await Promise.all(Array.from({ length: MANY }, quick))).filter(Boolean).length;

  makeSlow(slow);
  for await (const message of client.experimental.tasks.callToolStream({ name: slow.tool, arguments: slow.arguments })) {
    if (message.type === 'error') throw message.error;
    if (message.type === 'taskCreated') facts.task = (await client.experimental.tasks.getTask(message.task.taskId)).status;
    if (message.type === 'result') facts.task += message.result.isError ? ', failed' : ', completed';
  }
  const abort = new AbortController();
  const left = await hold({ signal: abort.signal });
  abort.abort('no longer needed');
  facts.cancel = (await left.end) === 'answered' ? 'answered' : 'cancelled';
  const lost = await hold({ timeout: isResumable ? IN_VAIN_MS : TIME_LIMIT_MS });
  console.log('READY');
  await new Promise((go) => createInterface({ input: process.stdin }).once('line', go).once('close', go));
  facts.crash = await lost.end;
  if (file) rmSync(file, { force: true });
  facts.after = await quick();
  await client.close();
  return facts;
}

const late = sleep(TIME_LIMIT_MS, { error: `no end within ${TIME_LIMIT_MS} ms` });
const facts = await Promise.race([drive().catch((error) => ({ error: String(error) })), late]);
console.log(JSON.stringify({ client: 'ts1', ...facts }));
process.exit(0);
