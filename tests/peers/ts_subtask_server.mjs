// An upstream whose tasks have subtasks (SEP-2268): a TypeScript SDK 1 server with handlers of its own for the task
// methods, since the SDK has no subtasks.
//
//   node ts_subtask_server.mjs [--port N]      prints `listening http://127.0.0.1:PORT/mcp`
//
// Its tool makes one subtask of each place. The first asks its question on the stream of its own `tasks/result`.

import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';
import { serve } from './session_http.mjs';

const WORK_MS = 200;
const RELATED = 'io.modelcontextprotocol/related-task';
const say = (value) => ({ content: [{ type: 'text', text: value }] });

const survey = {
  name: 'survey',
  description: 'Surveys places, each as a task of its own',
  inputSchema: { type: 'object', properties: { places: { type: 'array', items: { type: 'string' } } }, required: ['places'] },
  execution: { taskSupport: 'required' },
};

function newServer() {
  const capabilities = { tools: {}, tasks: { cancel: {}, requests: { tools: { call: {} } } } };
  const server = new Server({ name: 'ts-subtasks', version: '1.0.0' }, { capabilities });
  const tasks = new Map();

  function make(parent) {
    const now = new Date().toISOString();
    const shown = { taskId: randomUUID(), status: 'working', createdAt: now, lastUpdatedAt: now, ttl: null, pollInterval: 50 };
    const task = { shown, parent, children: [], done: Promise.withResolvers() };
    if (parent) {
      shown.parentTaskId = parent.shown.taskId;
      parent.children.push(task);
      parent.shown.childTaskIds = parent.children.map((child) => child.shown.taskId);
    }
    tasks.set(shown.taskId, task);
    return task;
  }

  function end(task, status, result) {
    if (!['working', 'input_required'].includes(task.shown.status)) return;
    Object.assign(task.shown, { status, lastUpdatedAt: new Date().toISOString() });
    task.done.resolve(result);
  }

  async function run(parent, places) {
    for (const [index, place] of places.entries()) {
      const child = make(parent);
      child.question = index === 0 ? `Which part of ${place}?` : undefined;
      if (child.question) child.shown.status = 'input_required';
      else delay(WORK_MS).then(() => end(child, 'completed', say(`surveyed ${place}`)));
    }
    const results = await Promise.all(parent.children.map((child) => child.done.promise));
    end(parent, 'completed', say(results.map(({ content }) => content[0].text).join(', ')));
  }

  function find({ params: { taskId } }) {
    const task = tasks.get(taskId);
    if (!task) throw new mcp.McpError(mcp.ErrorCode.InvalidParams, `Unknown task: ${taskId}`);
    return task;
  }

  function related({ shown: { taskId, parentTaskId } }) {
    return { [RELATED]: parentTaskId ? { taskId, parentTaskId } : { taskId } };
  }

  server.setRequestHandler(mcp.ListToolsRequestSchema, () => ({ tools: [survey] }));
  server.setRequestHandler(mcp.CallToolRequestSchema, ({ params }) => {
    const top = make();
    run(top, params.arguments.places);
    const { taskId, status, createdAt, lastUpdatedAt, ttl, pollInterval } = top.shown;
    return { task: { taskId, status, createdAt, lastUpdatedAt, ttl, pollInterval } };
  });
  server.setRequestHandler(mcp.GetTaskRequestSchema, (request) => ({ ...find(request).shown }));
  server.setRequestHandler(mcp.CancelTaskRequestSchema, (request) => {
    const task = find(request);
    task.children.forEach((child) => end(child, 'cancelled', say('cancelled')));
    end(task, 'cancelled', say('cancelled'));
    return { ...task.shown };
  });
  server.setRequestHandler(mcp.GetTaskPayloadRequestSchema, async (request, { sendRequest }) => {
    const task = find(request);
    const { question } = task;
    if (question) {
      task.question = undefined;
      const requestedSchema = { type: 'object', properties: { part: { type: 'string' } } };
      const params = { message: question, requestedSchema, _meta: related(task) };
      const { action, content = {} } = await sendRequest({ method: 'elicitation/create', params }, mcp.ElicitResultSchema);
      end(task, 'completed', say(`${action}: ${content.part}`));
    }
    return { ...(await task.done.promise), _meta: related(task) };
  });
  return server;
}

serve(newServer);
