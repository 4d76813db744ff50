import asyncio

from connect import connect
from mcp.client.extension import NotificationBinding
from tasks import Reply, Tasks, rpc


class Listening(Tasks):
    ended = asyncio.Event()

    async def notified(self, task: Reply) -> None:
        print(task.status, getattr(task, "statusMessage", ""))
        if task.status != "working":
            self.ended.set()

    def notifications(self):
        return [NotificationBinding(method="notifications/tasks", params_type=Reply, handler=self.notified)]


async def main() -> None:
    async with connect(extensions=[Listening(None)]) as client:
        created = await client.session.call_tool("slow_report", {"seconds": 4, "steps": 4}, allow_claimed=True)
        notifications = {"taskIds": [created.taskId]}
        listening = asyncio.create_task(rpc(client.session, "subscriptions/listen", notifications=notifications))
        await Listening.ended.wait()
        listening.cancel()


asyncio.run(main())
