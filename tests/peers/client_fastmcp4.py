"""Drives a tool with FastMCP 4 and fastmcp-tasks, whose client knows extension tasks by itself.

See client_driver.py for the command line and the facts it prints.
"""

from importlib.metadata import version
from typing import Any

from client_driver import Facts, Wire, main, returned
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp_tasks import call_tool_task


async def drive(url: str, case: str, tool: str, arguments: dict[str, Any], wire: Wire) -> Facts:
    transport = StreamableHttpTransport(url, httpx_client_factory=wire.http_client)
    async with Client(transport) as client:
        if case == "call":
            result = await client.call_tool(tool, arguments, raise_on_error=False)
            return returned(wire, result.content, result.is_error)
        task = await call_tool_task(client, tool, arguments)
        await task.status()
        await task.cancel()
        final = await task.wait(timeout=20)
        return {"outcome": final.status, "text": final.status_message or ""}


main("fastmcp", version("fastmcp"), drive)
