"""The limit of the framework: an endpoint that parses the same body, and does nothing with it.

    python -m bench.wire.bare

Says where it listens, and runs until SIGINT; on the settings of our own server.
"""

from __future__ import annotations

import asyncio
import signal

import msgspec
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.server.http import body_type
from holdfast.server.run import Address, HttpServer, http_config, listening
from holdfast.wire.operations import BY_NAME

_decode = msgspec.json.Decoder(body_type(BY_NAME["Enqueue"])).decode


async def parse(request: Request) -> Response:
    _decode(await request.body())
    return Response(b"{}", 201, media_type="application/json")


async def main() -> None:
    sock = listening(Address("127.0.0.1", 0))
    app = Starlette(routes=[Route("/v1/queues/{queue}/messages", parse, methods=["POST"])])
    server = HttpServer(http_config(app))
    await server.open(sock)
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, asked.set)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    await asked.wait()
    await server.close()


if __name__ == "__main__":
    uvloop.run(main())
