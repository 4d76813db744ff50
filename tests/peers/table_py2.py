"""The same row as in table_ts1.mjs, with the client of the Python SDK 2 in its default mode: 2026-07-28, no tasks."""

import asyncio
import json
import sys
from pathlib import Path

from mcp import Client
from mcp.client.streamable_http import streamable_http_client

MANY = 50
LOOK_S = 0.05
TIME_LIMIT_S = 150

url, row = sys.argv[1], json.loads(sys.argv[2])
fast, held, switch = row["fast"], row["held"], Path(row["switch"]) if row.get("switch") else None


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

        async def lasting(begun: asyncio.Event) -> str:
            async def stepped(*_: object) -> None:
                begun.set()

            try:
                await client.call_tool(held["tool"], held["arguments"], progress_callback=stepped)
                return "answered"
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                return reason(error)

        async def hold() -> asyncio.Task[str]:
            """Makes a held call, and returns once it has begun: the server reports progress, or the delay has begun."""
            if switch:
                switch.write_text(f"{held['seconds']}\n")
            begun = asyncio.Event()
            call = asyncio.create_task(lasting(begun))
            while not (call.done() or ("waits" in switch.read_text() if switch else begun.is_set())):
                await asyncio.sleep(LOOK_S)
            return call

        facts["fast"] = await quick()
        facts["many"] = sum(await asyncio.gather(*(quick() for _ in range(MANY))))
        left = await hold()
        left.cancel()
        [ended] = await asyncio.gather(left, return_exceptions=True)
        facts["cancel"] = "cancelled" if isinstance(ended, asyncio.CancelledError) else str(ended)
        lost = await hold()
        print("READY", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        facts["crash"] = await lost
        if switch:
            switch.unlink(missing_ok=True)
        facts["after"] = await quick()
    return facts


async def main() -> None:
    try:
        facts = await asyncio.wait_for(drive(), TIME_LIMIT_S)
    except BaseException as error:
        facts = {"error": reason(error)}
    print(json.dumps({"client": "py2", **facts}), flush=True)


asyncio.run(main())
