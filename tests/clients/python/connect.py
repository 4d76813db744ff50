import os

import httpx2
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client


async def elicited(_context, params) -> types.ElicitResult:
    print("question:", params.message)
    return types.ElicitResult(action="accept", content={"confirm": True})


def connect(**options) -> Client:
    http = httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {os.environ['TASKGATE_KEY']}"},
        timeout=httpx2.Timeout(30, read=300),
        # A refused connection is tried again for two minutes: the gateway may be restarting, and tasks continue.
        transport=httpx2.AsyncHTTPTransport(retries=9),
    )
    transport = streamable_http_client(os.environ["TASKGATE_URL"], http_client=http)
    return Client(transport, elicitation_callback=elicited, **options)
