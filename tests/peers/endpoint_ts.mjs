// Uses several servers at one address with the client of the TypeScript SDK 1 or 2.
//
//   node endpoint_ts.mjs ts1|ts2 URL PLAN_JSON
//
// PLAN has `servers` (the names whose tools are waited for: programs take their time to start), `calls` (tool and arguments of each), `resource`, `prompt` (name and arguments), `slow` and `ask` (as a call).
// Prints one JSON line of facts: `tools` and `prompts`, the names that are listed; what each call `said`; what the
// `resource` and the `prompt` say; what the `slow` call said, and the id of its `task` where the client made one; what the
// tool that asks said (`answered`) and how often the client was `asked`. Version 1 knows tasks of 2025-11-25.

import { readFileSync } from 'node:fs';
import { elicited } from './client_answers.mjs';

const TIME_LIMIT_MS = 150_000;
const LISTS_MAX = 20;
const CLIENT = { name: 'taskgate-peer', version: '1.0.0' };

const [sdk, url, planJson] = process.argv.slice(2);
const plan = JSON.parse(planJson);
const isFirst = sdk === 'ts1';
const name = isFirst ? '@modelcontextprotocol/sdk' : '@modelcontextprotocol/client';
const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url), 'utf8'));
const { Client } = await import(isFirst ? `${name}/client/index.js` : name);
const { StreamableHTTPClientTransport } = await import(isFirst ? `${name}/client/streamableHttp.js` : name);
const question = isFirst ? (await import(`${name}/types.js`)).ElicitRequestSchema : 'elicitation/create';
const textOf = ({ content }) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');
const callOf = ({ tool, arguments: args }) => ({ name: tool, arguments: args });

const late = setTimeout(() => { throw new Error('no end'); }, TIME_LIMIT_MS);
const facts = { client: name, version, tools: [], said: [], task: null, asked: 0 };
const isWhole = () => plan.servers.every((server) => facts.tools.some((tool) => tool.startsWith(`${server}__`)));
const client = new Client(CLIENT, { capabilities: { elicitation: {} } });
client.setRequestHandler(question, async ({ params }) => {
  facts.asked += 1;
  return elicited(params, false);
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
for (let tries = 0; tries < LISTS_MAX && !isWhole(); tries += 1) {
  facts.tools = (await client.listTools()).tools.map((tool) => tool.name);
}
facts.prompts = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
for (const call of plan.calls) facts.said.push(textOf(await client.callTool(callOf(call))));
facts.resource = (await client.readResource({ uri: plan.resource })).contents[0].text;
const { messages } = await client.getPrompt(plan.prompt);
facts.prompt = textOf({ content: messages.map(({ content }) => content) });
if (isFirst) {
  // Told by the tool list that it may, this client makes a task of it.
  for await (const message of client.experimental.tasks.callToolStream(callOf(plan.slow))) {
    if (message.type === 'error') throw message.error;
    if (message.type === 'taskCreated') facts.task = message.task.taskId;
    if (message.type === 'result') facts.slow = textOf(message.result);
  }
} else {
  facts.slow = textOf(await client.callTool(callOf(plan.slow)));
}
facts.answered = textOf(await client.callTool(callOf(plan.ask)));
await client.close();
clearTimeout(late);
console.log(JSON.stringify(facts));
process.exit(0);
