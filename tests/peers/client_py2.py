"""Drives a tool with the Python SDK 2 in its default mode: plain calls of 2026-07-28, no tasks.

See client_driver.py for the command line and the facts it prints; CASE `cancel` does not apply.
"""

from importlib.metadata import version
from typing import Any

from client_driver import Facts, Wire, main, returned
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def drive(url: str, case: str, tool: str, arguments: dict[str, Any], wire: Wire) -> Facts:
    if case == "cancel":
        return {"outcome": "not_applicable"}
    async with wire.http_client() as http_client:
        async with Client(streamable_http_client(url, http_client=http_client)) as client:
            result = await client.call_tool(tool, arguments)
            return returned(wire, result.content, result.is_error)


main("mcp", version("mcp"), drive)
