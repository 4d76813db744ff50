"""Drives a call of a client without tasks, the one of the Python SDK 1, which goes on by the tools that a result names.

    fallback_py.py URL TOOL JSON TIMEOUT_S

prints `facts JSON`: `text` of the end, `waits` with task_result, `status` after task_status, the `names` of the tools.
"""

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

WAITS_MAX = 60


def text(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


def status_of(result: Any) -> str | None:
    return (result.structuredContent or {}).get("status")


async def main(url: str, tool: str, arguments: dict[str, Any], timeout: timedelta) -> None:
    async with streamable_http_client(url) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()

        async def call(name: str, values: dict[str, Any]) -> Any:
            return await session.call_tool(name, values, read_timeout_seconds=timeout)

        # From here on the SDK checks every result against what the list states.
        names = [listed.name for listed in (await session.list_tools()).tools]
        result = await call(tool, arguments)
        task = result.structuredContent["taskId"]
        status = status_of(await call("task_status", {"id": task}))
        waits = 0
        while status_of(result) == "working" and waits < WAITS_MAX:
            result = await call("task_result", {"id": task, "wait_seconds": 5})
            waits += 1
        facts = {"text": text(result), "waits": waits, "status": status, "names": names}
        print(f"facts {json.dumps(facts)}", flush=True)


if __name__ == "__main__":
    url, tool, arguments, timeout_s = sys.argv[1:]
    asyncio.run(main(url, tool, json.loads(arguments), timedelta(seconds=float(timeout_s))))
