import asyncio

from connect import connect
from tasks import Tasks, rpc


async def main() -> None:
    async with connect(extensions=[Tasks(None)]) as client:
        created = await client.session.call_tool("slow_report", {"seconds": 60}, allow_claimed=True)
        await rpc(client.session, "tasks/cancel", taskId=created.taskId)
        print("status:", (await rpc(client.session, "tasks/get", taskId=created.taskId))["status"])


asyncio.run(main())
