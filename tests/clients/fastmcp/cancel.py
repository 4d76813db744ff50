import asyncio

from connect import connect
from fastmcp_tasks import call_tool_task


async def main() -> None:
    async with connect() as client:
        task = await call_tool_task(client, "slow_report", {"seconds": 60})
        await task.cancel()
        print("status:", (await task.wait(timeout=20)).status)


asyncio.run(main())
