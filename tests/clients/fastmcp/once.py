import asyncio

from connect import connect
from fastmcp_tasks import call_tool_task


async def main() -> None:
    call = ("slow_report", {"seconds": 4, "steps": 4})
    async with connect() as client:
        meta = {"io.taskgate/idempotency-key": "report-7"}
        print("by _meta:", (await call_tool_task(client, *call, meta=meta)).task_id)
    async with connect(**{"Idempotency-Key": "report-7"}) as client:
        print("by header:", (await call_tool_task(client, *call)).task_id)


asyncio.run(main())
