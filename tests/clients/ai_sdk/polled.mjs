import { setTimeout as sleep } from 'node:timers/promises';
import { client } from './connect.mjs';

/** A poll that gets no connection is sent again: the gateway may be restarting, and the task continues. */
async function poll(call) {
  for (;;) {
    try {
      return await client.callTool(call);
    } catch (error) {
      if (!(error.cause instanceof TypeError)) throw error;
      await sleep(1000);
    }
  }
}
let answer = await client.callTool({ name: 'slow_report', arguments: { seconds: 4, steps: 4 } });
const id = answer.structuredContent?.taskId;
if (id) console.log('task', id);
while (answer.structuredContent?.status === 'working') {
  answer = await poll({ name: 'task_result', arguments: { id, wait_seconds: 2 } });
}
console.log(answer.content[0].text);
await client.close();
