import { client } from './plain.mjs';

client.setNotificationHandler('notifications/tools/list_changed', () => console.log('the tools have changed'));
const subscription = await client.listen({ toolsListChanged: true });
console.log('granted:', JSON.stringify(subscription.honoredFilter));
await subscription.close();
await client.close();
