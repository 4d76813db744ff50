// Drives a server over stdio with the client of the TypeScript SDK 1 or 2. See wrap_py.py for the command line and the
// facts; the first argument is `ts1` or `ts2`. Version 1 knows tasks of 2025-11-25.

const TIME_LIMIT_MS = 150_000;
const CLIENT = { name: 'taskgate-peer', version: '1.0.0' };

const [sdk, fastTool, fastJson, slowTool, slowJson, command, ...args] = process.argv.slice(2);
const fast = { name: fastTool, arguments: JSON.parse(fastJson) };
const slow = { name: slowTool, arguments: JSON.parse(slowJson) };
const isFirst = sdk === 'ts1';
const base = isFirst ? '@modelcontextprotocol/sdk/client' : '@modelcontextprotocol/client';
const { Client } = await import(isFirst ? `${base}/index.js` : base);
const { StdioClientTransport } = await import(isFirst ? `${base}/stdio.js` : `${base}/stdio`);
const textOf = ({ content }) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');

const late = setTimeout(() => { throw new Error('no end'); }, TIME_LIMIT_MS);
const facts = { client: sdk, task: null, as_task: null };
const client = new Client(CLIENT, { capabilities: {} });
await client.connect(new StdioClientTransport({ command, args, env: process.env }));
facts.tools = (await client.listTools()).tools.length;
facts.fast = textOf(await client.callTool(fast));
if (isFirst) {
  // Told by the tool list that it may, this client makes a task of it.
  for await (const message of client.experimental.tasks.callToolStream(slow)) {
    if (message.type === 'error') throw message.error;
    if (message.type === 'taskCreated') facts.task = message.task.taskId;
    if (message.type === 'result') facts.as_task = textOf(message.result);
  }
}
facts.slow = textOf(await client.callTool(slow));
await client.close();
clearTimeout(late);
console.log(JSON.stringify(facts));
