"""Serves and calls a model through openpi's websocket, in an environment with openpi-client.

    python openpi_side.py server PORT FOLDER
    python openpi_side.py client PORT FOLDER raw|jpeg SLOWDOWN PERIOD

The client is openpi-client's WebsocketClientPolicy, unmodified. openpi-client contains
no server. The server of this file works like openpi's WebsocketPolicyServer: it uses
asyncio, and the inference runs in the event loop.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from loop import encoder, named, run, server_of


async def serve(port: int, folder: str) -> None:
    from openpi_client import msgpack_numpy
    from websockets.asyncio.server import serve as listen
    from websockets.exceptions import ConnectionClosed
    answer = server_of(folder)

    async def handle(connection: Any) -> None:
        await connection.send(msgpack_numpy.packb({}))
        try:
            while True:
                asked = msgpack_numpy.unpackb(await connection.recv())
                await connection.send(msgpack_numpy.packb({'output': answer(asked)}))
        except ConnectionClosed:
            return

    async with listen(handle, '127.0.0.1', port, compression=None, max_size=None) as server:
        print('serving', flush=True)
        await server.serve_forever()


def act(port: int, folder: str, form: str, slowdown: float, period: float) -> None:
    from openpi_client.websocket_client_policy import WebsocketClientPolicy
    policy, encode = WebsocketClientPolicy('127.0.0.1', port), encoder(form, slowdown)
    run(lambda pictures: policy.infer(named(list(map(encode, pictures))))['output'], folder, period)


if __name__ == '__main__':
    side, port_, folder_, *rest = sys.argv[1:]
    if side == 'server':
        asyncio.run(serve(int(port_), folder_))
    else:
        act(int(port_), folder_, rest[0], *map(float, rest[1:]))
