"""Serves an application by uvicorn, and says where once it answers: an application may take long to start."""

import socket

import uvicorn


class SaysWhenReady(uvicorn.Server):
    """Prints `listening URL` when the application has started."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self.url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"listening {self.url}", flush=True)


def serve(app, port: int, path: str) -> None:
    """Serves `app` at a port of loopback, any if it is 0, until the process is ended."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        SaysWhenReady(config, url).run(sockets=[listener])
