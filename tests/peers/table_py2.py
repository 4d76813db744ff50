"""The same row as in table_ts1.mjs, with the client of the Python SDK 2 in its default mode: 2026-07-28, no tasks."""

import asyncio
import json
import sys
from pathlib import Path

from mcp import Client
from mcp.client.streamable_http import streamable_http_client

MANY = 50
RUNS_S = 0.7
TIME_LIMIT_S = 150

url, row = sys.argv[1], json.loads(sys.argv[2])
fast, slow, switch = row["fast"], row["slow"], row.get("switch")


def make_slow(is_slow: bool) -> None:
    if not switch:
        return
    if is_slow:
        Path(switch).touch()
    else:
        Path(switch).unlink(missing_ok=True)


def reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return reason(error.exceptions[0])
    data = getattr(error, "data", None) or getattr(getattr(error, "error", None), "data", None)
    return data.get("reason", repr(error)) if isinstance(data, dict) else repr(error)


async def drive() -> dict[str, object]:
    facts: dict[str, object] = {}
    async with Client(streamable_http_client(url)) as client:

        async def quick() -> bool:
            result = await client.call_tool(fast["tool"], fast["arguments"])
            text = "\n".join(part.text for part in result.content if part.type == "text")
            return not result.is_error and fast["holds"] in text

        async def lasting() -> str:
            try:
                await client.call_tool(slow["tool"], slow["arguments"])
                return "answered"
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                return reason(error)

        facts["fast"] = await quick()
        facts["many"] = sum(await asyncio.gather(*(quick() for _ in range(MANY))))
        make_slow(True)
        left = asyncio.create_task(lasting())
        await asyncio.sleep(RUNS_S)
        left.cancel()
        [ended] = await asyncio.gather(left, return_exceptions=True)
        facts["cancel"] = "cancelled" if isinstance(ended, asyncio.CancelledError) else str(ended)
        lost = asyncio.create_task(lasting())
        await asyncio.sleep(RUNS_S)
        print("READY", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        facts["crash"] = await lost
        make_slow(False)
        facts["after"] = await quick()
    return facts


async def main() -> None:
    try:
        facts = await asyncio.wait_for(drive(), TIME_LIMIT_S)
    except BaseException as error:
        facts = {"error": reason(error)}
    print(json.dumps({"client": "py2", **facts}), flush=True)


asyncio.run(main())
