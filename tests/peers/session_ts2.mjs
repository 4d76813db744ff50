// Drives a session with the TypeScript client 2 in its default mode. See session_driver.mjs for the command line.

import { Client, ProtocolError, SSEClientTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { CAPABILITIES, CLIENT, isOlder, main } from './session_driver.mjs';

const QUESTIONS = ['elicitation/create', 'sampling/createMessage', 'roots/list'];
const NOTICES = [
  'notifications/resources/updated', 'notifications/tools/list_changed', 'notifications/prompts/list_changed',
  'notifications/resources/list_changed', 'notifications/message',
];

async function open(url, { fetch, answers, listen }) {
  const client = new Client(CLIENT, { capabilities: CAPABILITIES });
  for (const method of QUESTIONS) client.setRequestHandler(method, () => answers[method]());
  for (const method of NOTICES) client.setNotificationHandler(method, ({ params }) => listen(method, params));
  const Transport = isOlder(url) ? SSEClientTransport : StreamableHTTPClientTransport;
  const transport = new Transport(new URL(url), { fetch });
  await client.connect(transport);
  return {
    call: (name, args, options) => client.callTool({ name, arguments: args }, options),
    prompt: (name) => client.getPrompt({ name }),
    subscribe: (uri) => client.subscribeResource({ uri }),
    setLevel: (level) => client.setLoggingLevel(level),
    terminate: () => transport.terminateSession(),
    close: () => client.close(),
    protocol: () => transport._protocolVersion,
  };
}

await main({ name: '@modelcontextprotocol/client', open, isProtocolError: (error) => error instanceof ProtocolError });
