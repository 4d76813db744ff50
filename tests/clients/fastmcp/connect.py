import os

import fastmcp_tasks  # lets every Client follow tasks
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport


async def elicited(message, _response_type, _params, _context) -> ElicitResult:
    print("question:", message)
    return ElicitResult(action="accept", content={"confirm": True})


def connect(**headers) -> Client:
    headers["Authorization"] = f"Bearer {os.environ['TASKGATE_KEY']}"
    return Client(StreamableHttpTransport(os.environ["TASKGATE_URL"], headers=headers), elicitation_handler=elicited)
