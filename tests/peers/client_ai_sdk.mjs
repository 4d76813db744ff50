// Drives a tool with the MCP client of the AI SDK as it comes: plain calls, 2026-07-28 where the server has it. It has no
// tasks and no sampling; what its user is asked its own handler answers.
//
//   node client_ai_sdk.mjs URL call|decline TOOL ARGUMENTS_JSON
//
// prints one JSON line of facts on stdout.

import { setTimeout as sleep } from 'node:timers/promises';
import { ElicitationRequestSchema, MCPClientError, createMCPClient } from '@ai-sdk/mcp';
import { elicited } from './client_answers.mjs';
import { textOf, versionOf } from './session_driver.mjs';

const TIME_LIMIT_MS = 150_000;

const [url, kind, tool, argumentsJson] = process.argv.slice(2);
if (argumentsJson === undefined || !['call', 'decline'].includes(kind)) {
  console.error('usage: client_ai_sdk.mjs URL call|decline TOOL ARGUMENTS_JSON');
  process.exit(2);
}

async function drive() {
  const client = await createMCPClient({
    transport: { type: 'http', url },
    clientName: 'taskgate-peer',
    capabilities: { elicitation: {} },
  });
  client.onElicitationRequest(ElicitationRequestSchema, ({ params }) => elicited(params, kind === 'decline'));
  const { content, isError } = await client.callTool({ name: tool, arguments: JSON.parse(argumentsJson) });
  return { outcome: isError ? 'tool_error' : 'result', text: textOf(content) };
}

function factsOfError(error) {
  if (MCPClientError.isInstance(error) && error.code !== undefined) {
    return { outcome: 'protocol_error', text: error.message, code: error.code };
  }
  return { outcome: 'client_error', text: String(error.cause ? `${error}: ${error.cause}` : error) };
}

const started = Date.now();
const late = sleep(TIME_LIMIT_MS, { outcome: 'client_error', text: `no end within ${TIME_LIMIT_MS} ms` });
const facts = await Promise.race([drive().catch(factsOfError), late]);
console.log(JSON.stringify({
  client: '@ai-sdk/mcp', version: versionOf('@ai-sdk/mcp'), outcome: null, text: '', code: null,
  task: false, polls: null, statuses: [], elapsed_ms: Date.now() - started,
  ...facts,
}));
process.exit(facts.outcome === 'client_error' ? 1 : 0);
