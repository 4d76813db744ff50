// Drives a session with the client of the TypeScript SDK 1. See session_driver.mjs for the command line.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';
import { CAPABILITIES, CLIENT, main } from './session_driver.mjs';

const QUESTIONS = [mcp.ElicitRequestSchema, mcp.CreateMessageRequestSchema, mcp.ListRootsRequestSchema];
const NOTICES = [
  mcp.ResourceUpdatedNotificationSchema, mcp.ToolListChangedNotificationSchema, mcp.PromptListChangedNotificationSchema,
  mcp.ResourceListChangedNotificationSchema, mcp.LoggingMessageNotificationSchema,
];

async function open(url, { fetch, answers, listen }) {
  const client = new Client(CLIENT, { capabilities: CAPABILITIES });
  for (const schema of QUESTIONS) client.setRequestHandler(schema, ({ method }) => answers[method]());
  for (const schema of NOTICES) client.setNotificationHandler(schema, ({ method, params }) => listen(method, params));
  const transport = new StreamableHTTPClientTransport(new URL(url), { fetch });
  await client.connect(transport);
  return {
    call: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
    prompt: (name) => client.getPrompt({ name }),
    subscribe: (uri) => client.subscribeResource({ uri }),
    setLevel: (level) => client.setLoggingLevel(level),
    terminate: () => transport.terminateSession(),
    close: () => client.close(),
    protocol: () => transport.protocolVersion,
  };
}

await main({ name: '@modelcontextprotocol/sdk', open, isProtocolError: (error) => error instanceof mcp.McpError });
