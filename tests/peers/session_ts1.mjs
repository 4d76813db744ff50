// Drives a session with the client of the TypeScript SDK 1. See session_driver.mjs for the command line.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';
import { CAPABILITIES, CLIENT, isOlder, main } from './session_driver.mjs';

const QUESTIONS = [mcp.ElicitRequestSchema, mcp.CreateMessageRequestSchema, mcp.ListRootsRequestSchema];
const NOTICES = [
  mcp.ResourceUpdatedNotificationSchema, mcp.ToolListChangedNotificationSchema, mcp.PromptListChangedNotificationSchema,
  mcp.ResourceListChangedNotificationSchema, mcp.LoggingMessageNotificationSchema,
];

/** A call as a task: the SDK makes one because the tool list says so, polls, and answers what it is asked. */
async function* asTask(client, name, args) {
  await client.listTools();
  for await (const message of client.experimental.tasks.callToolStream({ name, arguments: args })) {
    if (message.type === 'error') throw message.error;
    yield message;
  }
}

async function task(client, name, args) {
  const facts = { task: null, ended: null, result: null };
  for await (const message of asTask(client, name, args)) {
    if (message.type === 'taskCreated') facts.task = message.task.taskId;
    if (message.type === 'result') facts.result = message.result;
  }
  const { status } = await client.experimental.tasks.getTask(facts.task);
  return { ...facts, ended: status };
}

async function cancelledTask(client, name, args, begun) {
  const { value } = await asTask(client, name, args).next();
  const { taskId } = value.task;
  await begun();
  const { status } = await client.experimental.tasks.cancelTask(taskId);
  const { tasks } = await client.experimental.tasks.listTasks();
  if (!tasks.some((listed) => listed.taskId === taskId)) throw new Error('the task is not listed');
  return { task: taskId, ended: status };
}

async function open(url, { fetch, answers, listen }) {
  const client = new Client(CLIENT, { capabilities: CAPABILITIES });
  for (const schema of QUESTIONS) client.setRequestHandler(schema, ({ method }) => answers[method]());
  for (const schema of NOTICES) client.setNotificationHandler(schema, ({ method, params }) => listen(method, params));
  const Transport = isOlder(url) ? SSEClientTransport : StreamableHTTPClientTransport;
  const transport = new Transport(new URL(url), { fetch });
  await client.connect(transport);
  return {
    call: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
    task: (name, args) => task(client, name, args),
    cancelledTask: (name, args, begun) => cancelledTask(client, name, args, begun),
    prompt: (name) => client.getPrompt({ name }),
    subscribe: (uri) => client.subscribeResource({ uri }),
    setLevel: (level) => client.setLoggingLevel(level),
    terminate: () => transport.terminateSession(),
    close: () => client.close(),
    protocol: () => transport._protocolVersion,
  };
}

await main({ name: '@modelcontextprotocol/sdk', open, isProtocolError: (error) => error instanceof mcp.McpError });
