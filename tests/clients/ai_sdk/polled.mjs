import { client } from './connect.mjs';

let answer = await client.callTool({ name: 'slow_report', arguments: { seconds: 4, steps: 4 } });
const id = answer.structuredContent?.taskId;
if (id) console.log('task', id);
while (answer.structuredContent?.status === 'working') {
  answer = await client.callTool({ name: 'task_result', arguments: { id, wait_seconds: 2 } });
}
console.log(answer.content[0].text);
await client.close();
