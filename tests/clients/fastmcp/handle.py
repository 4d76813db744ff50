import asyncio

from connect import connect
from fastmcp_tasks import call_tool_task


async def main() -> None:
    async with connect() as client:
        task = await call_tool_task(client, "slow_report", {"seconds": 4, "steps": 4})
        print("task", task.task_id, flush=True)
        while (status := await task.status()).status == "working":
            print("progress:", status.status_message)
            await asyncio.sleep(1)
        print((await task.result()).content[0].text)


asyncio.run(main())
