// The upstream that the official conformance suite is run against: a streamable HTTP server of the
// versions up to 2025-11-25 (`initialize`, sessions, no tasks), with every tool, resource and prompt
// that the suite's server scenarios name. Each tool is a plain synchronous one and does what it says.
//
//   node fixture.mjs [--port N]      prints `listening http://127.0.0.1:PORT/mcp`

import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';
import { completions, findPrompt, listPrompts, listTemplates, readResource, resources } from './fixture_content.mjs';
import { findTool, listTools } from './fixture_tools.mjs';
import { serve, sessions } from './session_http.mjs';

const LEVELS = mcp.LoggingLevelSchema.options;

/** What list-changing tools toggle; all sessions see the same lists and are told. */
const shown = { dynamicTool: false, dynamicPrompt: false };

function newServer() {
  const server = new Server(
    { name: 'conformance-fixture', version: '1.0.0' },
    {
      capabilities: {
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { subscribe: true },
        completions: {},
        logging: {},
      },
      instructions: 'Every tool answers in the call itself.',
    },
  );
  let level = 'debug';
  const handle = (schema, handler) => server.setRequestHandler(schema, handler);

  /** What a tool or prompt may do besides returning: talk to the client on its own request's stream. */
  const context = (extra) => ({
    signal: extra.signal,
    progressToken: extra._meta?.progressToken,
    clientCapabilities: server.getClientCapabilities() ?? {},
    notify: (method, params) => extra.sendNotification({ method, params }),
    log: async (data) => {
      if (LEVELS.indexOf('info') < LEVELS.indexOf(level)) return;
      await extra.sendNotification({ method: 'notifications/message', params: { level: 'info', logger: 'fixture', data } });
    },
    elicit: (params) => extra.sendRequest({ method: 'elicitation/create', params }, mcp.ElicitResultSchema),
    sample: (params) => extra.sendRequest({ method: 'sampling/createMessage', params }, mcp.CreateMessageResultSchema),
    roots: () => extra.sendRequest({ method: 'roots/list' }, mcp.ListRootsResultSchema),
    closeStream: () => extra.closeSSEStream?.(),
    toggle: async (what) => {
      shown[what] = !shown[what];
      const told = [...sessions.values()].map(({ server: other }) =>
        what === 'dynamicTool' ? other.sendToolListChanged() : other.sendPromptListChanged(),
      );
      await Promise.allSettled(told);
      return shown[what];
    },
  });

  handle(mcp.ListToolsRequestSchema, () => ({ tools: listTools(shown) }));
  handle(mcp.CallToolRequestSchema, ({ params }, extra) => {
    const run = findTool(params.name, shown);
    if (!run) throw new mcp.McpError(mcp.ErrorCode.InvalidParams, `Unknown tool: ${params.name}`);
    return run(params.arguments ?? {}, context(extra));
  });
  handle(mcp.ListPromptsRequestSchema, () => ({ prompts: listPrompts(shown) }));
  handle(mcp.GetPromptRequestSchema, async ({ params }, extra) => {
    const get = findPrompt(params.name, shown);
    if (!get) throw new mcp.McpError(mcp.ErrorCode.InvalidParams, `Unknown prompt: ${params.name}`);
    return { messages: await get(params.arguments ?? {}, context(extra)) };
  });
  handle(mcp.ListResourcesRequestSchema, () => ({ resources }));
  handle(mcp.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: listTemplates() }));
  handle(mcp.ReadResourceRequestSchema, ({ params: { uri } }) => {
    const content = readResource(uri);
    if (!content) throw new mcp.McpError(-32002, 'Resource not found', { uri });
    return { contents: [{ uri, ...content }] };
  });
  // No resource ever changes, so a subscription leads to nothing.
  handle(mcp.SubscribeRequestSchema, () => ({}));
  handle(mcp.UnsubscribeRequestSchema, () => ({}));
  handle(mcp.CompleteRequestSchema, ({ params }) => ({ completion: completions(params) }));
  handle(mcp.SetLevelRequestSchema, ({ params }) => {
    level = params.level;
    return {};
  });
  return server;
}

serve(newServer);
