"""The two sides of openpi's websocket, in an environment with openpi-client (and no torch).

    python openpi_side.py server PORT SECONDS      answers with zeros, SECONDS after an observation
    python openpi_side.py client PORT SECONDS      acts for SECONDS; prints what was executed

The client is openpi-client, unmodified: WebsocketClientPolicy in an ActionChunkBroker, called at 30
Hz by a loop as in its Runtime. openpi-client has no server; this one speaks its protocol.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

RATE, CHUNK, JOINTS, HEIGHT, WIDTH = 30.0, 100, 7, 480, 640


def serve(port: int, seconds: float) -> None:
    import websockets.sync.server
    from openpi_client import msgpack_numpy

    def handle(connection) -> None:
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


def act(port: int, seconds: float) -> None:
    from openpi_client.action_chunk_broker import ActionChunkBroker
    from openpi_client.websocket_client_policy import WebsocketClientPolicy
    observed = [0.0]

    class Noted(WebsocketClientPolicy):
        """Notes when the observation was made that it sends."""

        def infer(self, obs):
            observed[0] = time.monotonic()
            return super().infer(obs)

    broker = ActionChunkBroker(Noted('127.0.0.1', port), CHUNK)
    images = np.random.default_rng(0).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)
    ages, error = [], ''
    begin = last = 0
    while not begin or last < begin + seconds * RATE:
        now = time.monotonic()
        time.sleep((int(now * RATE) + 1) / RATE - now)
        try:
            broker.infer({'top': images[0], 'wrist': images[1],
                          'state': np.zeros(JOINTS, np.float32)})
        except Exception as reason:   # the connection is lost: it ends, as openpi's Runtime does
            error = f'{type(reason).__name__}: {reason}'
            break
        now = time.monotonic()
        last = int(now * RATE)
        begin = begin or last
        ages.append((last, now - observed[0]))
    executed = len({tick for tick, _ in ages})
    print(json.dumps({'ticks': int(seconds * RATE), 'executed': executed,
                      'ages': [round(age, 4) for _, age in ages], 'error': error}))


if __name__ == '__main__':
    side, port_, seconds_ = sys.argv[1:]
    {'server': serve, 'client': act}[side](int(port_), float(seconds_))
