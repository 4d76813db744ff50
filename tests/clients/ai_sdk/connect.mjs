import { AsyncLocalStorage } from 'node:async_hooks';
import { ElicitationRequestSchema, createMCPClient } from '@ai-sdk/mcp';

/** Sets a header for one call: `key.run('report-7', () => client.callTool(...))`. */
export const key = new AsyncLocalStorage();
const fetchWithKey = (url, options) => {
  const headers = new Headers(options.headers);
  if (key.getStore()) headers.set('Idempotency-Key', key.getStore());
  return fetch(url, { ...options, headers });
};
const headers = { Authorization: `Bearer ${process.env.TASKGATE_KEY}` };
export const client = await createMCPClient({
  transport: { type: 'http', url: process.env.TASKGATE_URL, headers, fetch: fetchWithKey },
  capabilities: { elicitation: {} },
});
client.onElicitationRequest(ElicitationRequestSchema, ({ params }) => {
  console.log('question:', params.message);
  return { action: 'accept', content: { confirm: true } };
});
