"""Drives a tool with the Python SDK 2 in its default mode: plain calls of 2026-07-28, no tasks.

See client_driver.py for the command line and the facts it prints; CASE `cancel` does not apply.
"""

from importlib.metadata import version
from typing import Any

from client_driver import SAMPLED, Facts, Wire, filled, main, returned
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client


async def drive(url: str, case: str, tool: str, arguments: dict[str, Any], wire: Wire) -> Facts:
    if case == "cancel":
        return {"outcome": "not_applicable"}

    async def elicited(_context: Any, params: Any) -> types.ElicitResult:
        if case == "decline":
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content=filled(params.requested_schema))

    async def sampled(_context: Any, _params: Any) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text=SAMPLED)
        return types.CreateMessageResult(role="assistant", model="peer", content=content)

    async with wire.http_client() as http_client:
        transport = streamable_http_client(url, http_client=http_client)
        async with Client(transport, elicitation_callback=elicited, sampling_callback=sampled) as client:
            result = await client.call_tool(tool, arguments)
            return returned(wire, result.content, result.is_error)


main("mcp", version("mcp"), drive)
