// Makes calls under ids of its own (SEP-1686) and filters its list (SEP-1904) with the client of the TypeScript SDK 1,
// which knows neither: by its public request calls, with `_meta` made by hand.
//
//   draft_ts1.mjs URL SLOW ARGUMENTS FAILING ARGUMENTS ASKING ARGUMENTS
//
// SLOW takes some seconds, FAILING ends with an error, ASKING asks for a name. Prints one line `facts JSON`.

import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';

const TASK = 'modelcontextprotocol.io/task';
const RELATED = 'modelcontextprotocol.io/related-task';
const PAUSE_MS = 50;
const TIME_LIMIT_MS = 150_000;

const [url, ...given] = process.argv.slice(2);
const [slow, fail, ask] = [0, 2, 4].map((n) => ({ name: given[n], arguments: JSON.parse(given[n + 1]) }));

const client = new Client({ name: 'taskgate-peer', version: '1.0.0' }, { capabilities: { elicitation: {} } });
const created = [];
const asked = [];
client.setRequestHandler(mcp.ElicitRequestSchema, ({ params }) => {
  asked.push(params._meta?.[RELATED]?.taskId);
  return { action: 'accept', content: { value: 'Ada' } };
});
client.fallbackNotificationHandler = async ({ method, params }) => {
  if (method === 'notifications/tasks/created') created.push(params._meta[RELATED].taskId);
};

const textOf = ({ content = [] }) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');
const request = (method, params, options) => client.request({ method, params }, mcp.ResultSchema, options);
const about = (method, taskId) => request(`tasks/${method}`, { taskId });
const codeOf = (answer) => answer.then(() => 'answered', (error) => error.code);
const statusOf = async (taskId) => (await about('get', taskId)).status;
const call = (taskId, tool, options) =>
  request('tools/call', { ...tool, _meta: { [TASK]: { taskId, keepAlive: 60_000 } } }, options);

async function until(what) {
  while (!(await what())) await sleep(PAUSE_MS);
}

async function waited() {
  const answer = call('mine 1', slow);
  await until(() => created.includes('mine 1'));
  const running = await about('get', 'mine 1');
  const early = await codeOf(about('result', 'mine 1'));
  const again = await codeOf(call('mine 1', slow));
  const result = await answer;
  const fetched = await about('result', 'mine 1');
  const facts = {
    running: running.status,
    keepAlive: running.keepAlive,
    early,
    again,
    text: textOf(result),
    related: result._meta[RELATED].taskId,
    same: JSON.stringify(fetched) === JSON.stringify(result),
    status: await statusOf('mine 1'),
    listed: (await request('tasks/list', {})).tasks.map(({ taskId }) => taskId),
  };
  await about('delete', 'mine 1');
  return { ...facts, deleted: await codeOf(about('get', 'mine 1')) };
}

async function cancelled() {
  const abort = new AbortController();
  const answer = codeOf(call('mine 2', slow, { signal: abort.signal }));
  await until(() => created.includes('mine 2'));
  abort.abort('no longer needed');
  await answer;
  await until(async () => (await statusOf('mine 2')) === 'cancelled');
  return codeOf(about('result', 'mine 2'));
}

async function failed() {
  const { isError, ...result } = await call('mine 3', fail);
  return { isError, text: textOf(result), status: await statusOf('mine 3') };
}

/** Tasks of 2025-11-25: one that ends, and one that is cancelled. */
async function filtered() {
  await client.listTools();
  const tasks = client.experimental.tasks;
  const ids = [];
  for (let n = 0; n < 2; n += 1) {
    for await (const message of tasks.callToolStream(slow)) {
      if (message.type === 'error') throw message.error;
      if (message.type !== 'taskCreated') continue;
      ids.push(message.task.taskId);
      if (n > 0) break;
    }
  }
  await tasks.cancelTask(ids[1]);
  const list = async (criteria) => {
    const page = await client.request({ method: 'tasks/list', params: criteria }, mcp.ListTasksResultSchema);
    return page.tasks.map(({ taskId }) => ids.indexOf(taskId));
  };
  const { filter } = client.getServerCapabilities().tasks.list;
  return {
    offered: Object.keys(filter ?? {}),
    completed: await list({ status: ['completed'] }),
    cancelled: await list({ filter: { status: ['cancelled'] } }),
    oldest: await list({ orderBy: 'createdAt', order: 'asc' }),
    named: await list({ taskIds: [ids[1]], methods: ['tools/call'] }),
    none: await list({ createdBefore: '2020-01-01T00:00:00Z' }),
  };
}

async function drive() {
  const transport = new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  const facts = { protocol: transport.protocolVersion, waited: await waited(), cancelled: await cancelled() };
  facts.failed = await failed();
  facts.asked = { text: textOf(await call('mine 4', ask)), of: asked };
  facts.filtered = await filtered();
  await client.close();
  return facts;
}

const late = sleep(TIME_LIMIT_MS, { error: `no end within ${TIME_LIMIT_MS} ms` });
const facts = await Promise.race([drive().catch((error) => ({ error: String(error.stack) })), late]);
console.log(`facts ${JSON.stringify(facts)}`);
process.exit(0);
