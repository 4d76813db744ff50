"""A server whose sessions are lost when it is started again: any release of a Python SDK with streamable HTTP.

    restarted_server.py --ledger FILE [--fastmcp] [--port N]     prints `listening http://127.0.0.1:PORT/mcp`

Its tool `count` writes its argument into FILE, one a line: what ran twice stands there twice.
"""

import argparse

from ready_server import serve


def application(ledger: str, is_fastmcp: bool):
    """A server of FastMCP, or of the SDK itself, whose class of that kind has had two names."""
    if is_fastmcp:
        from fastmcp import FastMCP as Server
    else:
        try:
            from mcp.server.fastmcp import FastMCP as Server
        except ImportError:
            from mcp.server.mcpserver import MCPServer as Server
    server = Server("restarted")

    def count(nonce: str) -> str:
        """Writes the nonce down."""
        with open(ledger, "a", encoding="utf-8") as file:
            file.write(f"{nonce}\n")
        return nonce

    if is_fastmcp:
        server.tool(count)
        return server.http_app(path="/mcp")
    server.tool()(count)
    return server.streamable_http_app()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--fastmcp", action="store_true")
    options = parser.parse_args()
    serve(application(options.ledger, options.fastmcp), options.port, "/mcp")


main()
