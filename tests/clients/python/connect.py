import os

from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client


async def elicited(_context, params) -> types.ElicitResult:
    print("question:", params.message)
    return types.ElicitResult(action="accept", content={"confirm": True})


def connect(**options) -> Client:
    http = create_mcp_http_client(headers={"Authorization": f"Bearer {os.environ['TASKGATE_KEY']}"})
    transport = streamable_http_client(os.environ["TASKGATE_URL"], http_client=http)
    return Client(transport, elicitation_callback=elicited, **options)
