"""An upstream whose one tool works through a list, one element after the other: a FastMCP 3 server.

    fastmcp_pages_server.py [--port N]      prints `listening http://127.0.0.1:PORT/mcp`
"""

import argparse
import asyncio
import socket
import time

import uvicorn
from fastmcp import FastMCP

SECONDS_EACH = 1

server = FastMCP("fastmcp-pages-upstream")


@server.tool
async def fetch_pages(urls: list[str]) -> dict:
    """Fetches pages, each for a second, and says when: by a clock of the server's own."""
    pages = []
    for url in urls:
        began = time.monotonic()
        await asyncio.sleep(SECONDS_EACH)
        pages.append({"url": url, "began": began, "ended": time.monotonic()})
    return {"pages": pages}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port
    with socket.create_server(("127.0.0.1", port)) as listener:
        print(f"listening http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
        app = server.http_app(path="/mcp")
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listener])


main()
