import asyncio

from connect import connect
from tasks import rpc


async def main() -> None:
    async with connect(mode="legacy") as client:
        for task in (await rpc(client.session, "tasks/list"))["tasks"]:
            print(task["taskId"], task["status"])


asyncio.run(main())
