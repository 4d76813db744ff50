"""An upstream whose one tool works through a list, one element after the other: a FastMCP 3 server.

    fastmcp_pages_server.py [--port N]      prints `listening http://127.0.0.1:PORT/mcp`
"""

import argparse
import asyncio
import time

from fastmcp import FastMCP
from ready_server import serve

# On a busy machine, calls that are made at the same time arrive within this time.
SECONDS_EACH = 3

server = FastMCP("fastmcp-pages-upstream")


@server.tool
async def fetch_pages(urls: list[str]) -> dict:
    """Fetches pages, each for three seconds, and says when: by a clock of the server's own."""
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
    serve(server.http_app(path="/mcp"), port, "/mcp")


main()
