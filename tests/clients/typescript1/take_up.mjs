import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { client, tasks } from './connect.mjs';

const [taskId] = process.argv.slice(2);
const patience = { timeout: 24 * 60 * 60 * 1000 };
const { content } = await tasks.getTaskResult(taskId, CallToolResultSchema, patience);
console.log(content[0].text);
await client.close();
