import asyncio
import sys

from connect import connect
from fastmcp_tasks import ToolTask
from fastmcp_tasks.client_models import ClientCreateTaskResult


async def main() -> None:
    created = {"resultType": "task", "taskId": sys.argv[1], "status": "working", "createdAt": "", "lastUpdatedAt": ""}
    async with connect() as client:
        task = ToolTask(client, "slow_report", ClientCreateTaskResult.model_validate(created))
        print((await task.result()).content[0].text)


asyncio.run(main())
