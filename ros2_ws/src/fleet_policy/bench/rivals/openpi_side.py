"""Run one of the two sides of openpi's websocket.

    python openpi_side.py server PORT SECONDS    answers with zeros, SECONDS after an observation
    python openpi_side.py client PORT            acts until it is ended or loses the connection

This program needs an environment with openpi-client. For each action that it executes,
the client prints the monotonic time and the age of the action, both in seconds. The
client consists of classes of openpi-client: WebsocketClientPolicy in an ActionChunkBroker.
A subclass of WebsocketClientPolicy adds only one thing: it records when it sends an observation.
A loop calls the ActionChunkBroker at 30 Hz, as openpi's Runtime does. openpi-client has no server;
the server here speaks the same protocol.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

RATE, CHUNK, JOINTS, HEIGHT, WIDTH = 30.0, 100, 7, 480, 640


def serve(port: int, seconds: float) -> None:
    import websockets.sync.server
    from openpi_client import msgpack_numpy

    def handle(connection: Any) -> None:
        connection.send(msgpack_numpy.packb({}))
        for data in connection:
            msgpack_numpy.unpackb(data)
            time.sleep(seconds)
            connection.send(msgpack_numpy.packb(
                {'actions': np.zeros((CHUNK, JOINTS), np.float32)}))

    with websockets.sync.server.serve(handle, '127.0.0.1', port, compression=None, max_size=None,
                                      ping_interval=None) as server:
        print('serving', flush=True)
        server.serve_forever()


def act(port: int) -> None:
    from openpi_client.action_chunk_broker import ActionChunkBroker
    from openpi_client.websocket_client_policy import WebsocketClientPolicy
    observed = 0.0

    class Noted(WebsocketClientPolicy):
        """Records the time at which it sends an observation."""

        def infer(self, obs: dict[str, Any]) -> dict[str, Any]:
            nonlocal observed
            observed = time.monotonic()
            return super().infer(obs)

    broker = ActionChunkBroker(Noted('127.0.0.1', port), CHUNK)
    images = np.random.default_rng(0).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)
    while True:
        now = time.monotonic()
        time.sleep((int(now * RATE) + 1) / RATE - now)
        try:
            broker.infer({'top': images[0], 'wrist': images[1],
                          'state': np.zeros(JOINTS, np.float32)})
        # The connection is lost. The program ends, as openpi's Runtime does.
        except Exception as error:
            print(f'ended: {type(error).__name__}: {error}', flush=True)
            return
        now = time.monotonic()
        print(now, now - observed, flush=True)


if __name__ == '__main__':
    side, port_, *rest = sys.argv[1:]
    if side == 'server':
        serve(int(port_), float(rest[0]))
    else:
        act(int(port_))
