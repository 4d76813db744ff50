import { client, tasks } from './connect.mjs';

for await (const message of tasks.callToolStream({ name: 'confirm_delete', arguments: { path: '/tmp/old' } })) {
  if (message.type === 'result') console.log(message.result.content[0].text);
  if (message.type === 'error') throw message.error;
}
await client.close();
