"""Listens with the Python SDK 2 in its default mode: one resource, and what a tool makes of it.

    listen_py2.py URL RESOURCE TOOL

prints what listen_ts.mjs prints.
"""

import asyncio
import json
import sys

from mcp import Client
from mcp.client.streamable_http import streamable_http_client

TIME_LIMIT_S = 150


async def listen(url: str, resource: str, tool: str) -> None:
    async with Client(streamable_http_client(url)) as client:
        async with client.listen(resource_subscriptions=[resource], tools_list_changed=True) as subscription:
            granted = subscription.honored.model_dump(by_alias=True, mode="json", exclude_none=True)
            print("granted", json.dumps(granted), flush=True)
            await client.call_tool(tool, {})
            is_first = True
            # The loop ends when the server ends the stream in order; anything else raises.
            async for event in subscription:
                uri = getattr(event, "uri", None)
                if uri is not None and is_first:
                    is_first = False
                    print("updated", uri, flush=True)
            print("closed graceful", flush=True)


asyncio.run(asyncio.wait_for(listen(*sys.argv[1:4]), TIME_LIMIT_S))
