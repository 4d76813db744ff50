import { setTimeout as sleep } from 'node:timers/promises';
import { rawDispatch } from './raw.mjs';

const rpc = async (method, params) => {
  const { result, error } = await rawDispatch({ method, params });
  if (error) throw Object.assign(new Error(error.message), error);
  return result;
};
let task = await rpc('tools/call', { name: 'confirm_delete', arguments: { path: '/tmp/old' } });
for (const { taskId } = task; ['working', 'input_required'].includes(task.status); task = await rpc('tasks/get', { taskId })) {
  for (const [key, { params }] of Object.entries(task.inputRequests ?? {})) {
    console.log('question:', params.message);
    const inputResponses = { [key]: { action: 'accept', content: { confirm: true } } };
    await rpc('tasks/update', { taskId, inputResponses });
  }
  await sleep(task.pollIntervalMs);
}
console.log(task.status ?? 'plain', (task.result ?? task).content[0].text);
