import os

import fastmcp_tasks  # lets every Client follow tasks
import httpx2
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport


async def elicited(message, _response_type, _params, _context) -> ElicitResult:
    print("question:", message)
    return ElicitResult(action="accept", content={"confirm": True})


def patient(**options) -> httpx2.AsyncClient:
    options.setdefault("timeout", httpx2.Timeout(30, read=300))
    # A refused connection is tried again for two minutes: the gateway may be restarting, and tasks continue.
    return httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(retries=9), **options)


def connect(**headers) -> Client:
    headers["Authorization"] = f"Bearer {os.environ['TASKGATE_KEY']}"
    transport = StreamableHttpTransport(os.environ["TASKGATE_URL"], headers=headers, httpx_client_factory=patient)
    return Client(transport, elicitation_handler=elicited)
