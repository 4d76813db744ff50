import { setTimeout as sleep } from 'node:timers/promises';
import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { client, tasks } from './connect.mjs';

const [taskId] = process.argv.slice(2);
const patience = { timeout: 24 * 60 * 60 * 1000 };
let result;
while (!result) {
  try {
    result = await tasks.getTaskResult(taskId, CallToolResultSchema, patience);
  } catch (error) {
    // A broken connection: the gateway may be restarting, and the task continues.
    if (!(error instanceof TypeError)) throw error;
    await sleep(1000);
  }
}
console.log(result.content[0].text);
await client.close();
