// An upstream that knows no tasks and uses all else that a session offers: a TypeScript SDK 1 server over
// streamable HTTP whose sessions keep their events, so that clients can resume.
//
//   node ts_store_server.mjs [--port N]      prints `listening http://127.0.0.1:PORT/mcp`
//
// What a tool says in the course of a call (progress, questions) goes out on the call's own stream; list changes,
// resource updates and log messages go out on the session's stream.

import { setTimeout as delay } from 'node:timers/promises';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';
import { serve } from './session_http.mjs';

const SECONDS_MAX = 600;
const WAIT_MAX_MS = 10_000;
const REFUSED = -32055;
const NOTE = 'store://note';
const LEVELS = mcp.LoggingLevelSchema.options;

const string = { type: 'string' };
const number = { type: 'number' };
const object = (properties = {}, required = Object.keys(properties)) => ({ type: 'object', properties, required });
const say = (value) => ({ content: [{ type: 'text', text: value }] });

/** A tool is `[description, run(arguments, call), inputSchema?]`. */
const tools = {
  greet: ['Greets someone', ({ name }) => say(`Hello, ${name}!`), object({ name: string })],
  slow: ['Works for some seconds and reports its progress', slow,
    object({ seconds: number, steps: number }, ['seconds'])],
  fail: ['Fails', () => ({ ...say('it broke'), isError: true })],
  refuse: ['Ends with a protocol error', () => {
    throw new mcp.McpError(REFUSED, 'refused on purpose', { why: 'asked for' });
  }],
  ask: ['Asks the user for a name', async ({ question }, { request }) => {
    const params = { message: question, requestedSchema: object({ name: string }) };
    const { action, content = {} } = await request('elicitation/create', params, mcp.ElicitResultSchema);
    return say(`${action}: ${content.name}`);
  }, object({ question: string })],
  complete: ['Asks the client\'s model', async ({ prompt }, { request }) => {
    const params = { messages: [{ role: 'user', content: { type: 'text', text: prompt } }], maxTokens: 50 };
    const { model, content } = await request('sampling/createMessage', params, mcp.CreateMessageResultSchema);
    return say(`${model}: ${content.text}`);
  }, object({ prompt: string })],
  roots: ['Names the client\'s roots', async (_, { request }) => {
    const { roots } = await request('roots/list', undefined, mcp.ListRootsResultSchema);
    return say(roots.map(({ uri }) => uri).join('\n'));
  }],
  change_tools: ['Shows or hides a tool', async (_, { session }) => {
    session.shown = !session.shown;
    await session.server.sendToolListChanged();
    return say(`now_and_then is ${session.shown ? 'shown' : 'hidden'}`);
  }],
  change_note: [`Changes ${NOTE}`, async (_, { session }) => {
    session.edition += 1;
    if (session.subscribed.has(NOTE)) await session.server.sendResourceUpdated({ uri: NOTE });
    return say(`edition ${session.edition}`);
  }],
  log: ['Logs a message', async ({ level, data }, { session }) => {
    if (LEVELS.indexOf(level) < LEVELS.indexOf(session.level)) return say('not logged');
    await session.server.notification({ method: 'notifications/message', params: { level, logger: 'store', data } });
    return say('logged');
  }, object({ level: { type: 'string', enum: LEVELS }, data: string })],
  part: ['Closes its stream, works for some seconds, then answers', async ({ seconds }, { closeStream, signal }) => {
    closeStream();
    await delay(Math.min(seconds, SECONDS_MAX) * 1000, undefined, { signal });
    return say(closeStream.isOffered ? 'answered after parting' : 'answered without parting');
  }, object({ seconds: number })],
  begun: ['Says how many slow calls of this session were begun, once there are so many', counted('begun'),
    object({ at_least: number })],
  cancelled: ['Says how many calls of this session were cancelled, once there are so many', counted('cancelled'),
    object({ at_least: number })],
};

async function slow({ seconds, steps = 4 }, { session, signal, progress }) {
  const duration = Math.min(seconds, SECONDS_MAX);
  session.begun += 1;
  try {
    for (let step = 1; step <= steps; step += 1) {
      await delay((duration / steps) * 1000, undefined, { signal });
      await progress({ progress: step, total: steps, message: `step ${step} of ${steps}` });
    }
  } catch (error) {
    if (signal.aborted) session.cancelled += 1;
    throw error;
  }
  return say(`worked ${duration} s in ${steps} steps`);
}

function counted(what) {
  return async ({ at_least: least }, { session, signal }) => {
    const deadline = Date.now() + WAIT_MAX_MS;
    while (session[what] < least && Date.now() < deadline) await delay(20, undefined, { signal });
    return say(`${session[what]} ${what}`);
  };
}

const isListed = (session) => ([name]) => name !== 'now_and_then' || session.shown;
const hidden = { now_and_then: ['Comes and goes', () => say('still here')] };
const listed = (session) => Object.entries({ ...tools, ...hidden }).filter(isListed(session));

/** What a tool may do besides returning. */
function callOf(session, { signal, _meta, sendNotification, sendRequest, closeSSEStream }) {
  const progressToken = _meta?.progressToken;
  return {
    session,
    signal,
    progress: async (params) => {
      if (progressToken === undefined) return;
      await sendNotification({ method: 'notifications/progress', params: { progressToken, ...params } });
    },
    request: (method, params, schema) => sendRequest({ method, params }, schema),
    // Offered to clients of 2025-11-25 or later only: older ones cannot know that the answer is still to come.
    closeStream: Object.assign(() => closeSSEStream?.(), { isOffered: closeSSEStream !== undefined }),
  };
}

function newServer() {
  const server = new Server(
    { name: 'ts-store', version: '1.0.0' },
    {
      capabilities: {
        tools: { listChanged: true },
        prompts: {},
        resources: { subscribe: true },
        logging: {},
      },
    },
  );
  const session = { server, shown: false, edition: 1, subscribed: new Set(), level: 'debug', begun: 0, cancelled: 0 };
  const handle = (schema, handler) => server.setRequestHandler(schema, handler);

  const describe = ([name, [description, , inputSchema = object()]]) => ({ name, description, inputSchema });
  handle(mcp.ListToolsRequestSchema, () => ({ tools: listed(session).map(describe) }));
  handle(mcp.CallToolRequestSchema, ({ params }, extra) => {
    const tool = listed(session).find(([name]) => name === params.name);
    if (!tool) throw new mcp.McpError(mcp.ErrorCode.InvalidParams, `Unknown tool: ${params.name}`);
    const [, [, run]] = tool;
    return run(params.arguments ?? {}, callOf(session, extra));
  });
  handle(mcp.ListPromptsRequestSchema, () => ({ prompts: [] }));
  handle(mcp.GetPromptRequestSchema, ({ params }) => {
    throw new mcp.McpError(mcp.ErrorCode.InvalidParams, `Unknown prompt: ${params.name}`);
  });
  handle(mcp.ListResourcesRequestSchema, () => ({ resources: [{ uri: NOTE, name: 'note', mimeType: 'text/plain' }] }));
  handle(mcp.ReadResourceRequestSchema, ({ params: { uri } }) => {
    if (uri !== NOTE) throw new mcp.McpError(-32002, 'Resource not found', { uri });
    return { contents: [{ uri, mimeType: 'text/plain', text: `edition ${session.edition}` }] };
  });
  handle(mcp.SubscribeRequestSchema, ({ params: { uri } }) => {
    session.subscribed.add(uri);
    return {};
  });
  handle(mcp.UnsubscribeRequestSchema, ({ params: { uri } }) => {
    session.subscribed.delete(uri);
    return {};
  });
  handle(mcp.SetLevelRequestSchema, ({ params }) => {
    session.level = params.level;
    return {};
  });
  return server;
}

serve(newServer);
