import { setTimeout as sleep } from 'node:timers/promises';

export const VERSION = '2026-07-28';
export const CLIENT = { name: 'my-agent', version: '1.0.0' };
export const CAPABILITIES = { elicitation: {}, extensions: { 'io.modelcontextprotocol/tasks': {} } };
const META = Object.fromEntries(Object.entries({ protocolVersion: VERSION, clientInfo: CLIENT, clientCapabilities: CAPABILITIES })
  .map(([key, value]) => [`io.modelcontextprotocol/${key}`, value]));

/** A poll that fails is sent again: the gateway may be restarting, and the task continues. */
async function post(isPoll, options) {
  for (;;) {
    const response = await fetch(process.env.TASKGATE_URL, options).catch((error) => {
      if (!isPoll || options.signal?.aborted) throw error;
    });
    if (response && !(isPoll && response.status >= 500)) return response;
    await sleep(1000);
  }
}

/** Sends one request of 2026-07-28, as ext-tasks wants it: `{ kind: 'result', result }` or `{ kind: 'error', error }`. */
export async function rawDispatch({ method, params }, { signal, context } = {}) {
  const id = crypto.randomUUID();
  const name = params.name ?? params.taskId;
  const response = await post(method === 'tasks/get', { method: 'POST', signal, headers: {
    Authorization: `Bearer ${process.env.TASKGATE_KEY}`, 'Content-Type': 'application/json',
    Accept: 'application/json, text/event-stream', 'MCP-Protocol-Version': VERSION, 'Mcp-Method': method,
    ...(name && { 'Mcp-Name': name }), ...context?.headers,
  }, body: JSON.stringify({ jsonrpc: '2.0', id, method, params: { ...params, _meta: { ...META, ...params._meta } } }) });
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream');
  const data = (await response.text()).split('\n').map((line) => (isStream ? line.match(/^data: ?(.+)/)?.[1] : line));
  const { result, error } = data.filter(Boolean).map((text) => JSON.parse(text)).find((message) => message.id === id);
  return error ? { kind: 'error', error } : { kind: 'result', result };
}
