"""Serves and calls a model through the gRPC of LeRobot's async_inference; needs lerobot[async].

    python grpc_side.py server PORT FOLDER
    python grpc_side.py client PORT FOLDER raw|jpeg SLOWDOWN PERIOD

The server is LeRobot's PolicyServer with the model in the place of the policy. The
client uses LeRobot's stub, channel options and helpers in two threads, as LeRobot's
RobotClient does. One thread sends each observation as a pickle in chunks. The other
thread asks for actions and receives each answer as a pickle in one message.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from loop import encoder, named, run, server_of

sys.path.append(str(Path(__file__).parents[3] / 'ros2_ws/src/fleet_policy/bench/rivals'))
from lerobot_side import prepare  # noqa: E402

RATE = 10   # control rate, in Hz


def serve(port: int, folder: str) -> None:
    import grpc
    from lerobot.async_inference.configs import PolicyServerConfig
    from lerobot.async_inference.policy_server import PolicyServer
    from lerobot.transport import services_pb2_grpc
    answer = server_of(folder)

    class Server(PolicyServer):
        """A policy server that answers with the model's output instead of a chunk of actions."""

        def _predict_action_chunk(self, timed: Any) -> Any:
            self.last_processed_obs = timed
            return answer(timed.get_observation())

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))   # four, as in LeRobot
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(
        Server(PolicyServerConfig(host='127.0.0.1', port=port, fps=RATE)), server)
    server.add_insecure_port(f'127.0.0.1:{port}')
    server.start()
    print('serving', flush=True)
    server.wait_for_termination()


def act(port: int, folder: str, form: str, slowdown: float, period: float) -> None:
    import grpc
    from lerobot.async_inference.helpers import TimedObservation
    from lerobot.transport import services_pb2, services_pb2_grpc
    from lerobot.transport.utils import grpc_channel_options, send_bytes_in_chunks
    channel = grpc.insecure_channel(f'127.0.0.1:{port}',
                                    grpc_channel_options(initial_backoff=f'{1 / RATE:.4f}s'))
    stub = services_pb2_grpc.AsyncInferenceStub(channel)
    stub.Ready(services_pb2.Empty())
    answers: SimpleQueue[Any] = SimpleQueue()
    numbers, encode = itertools.count(), encoder(form, slowdown)

    def receive() -> None:
        while True:
            try:
                data = stub.GetActions(services_pb2.Empty()).data
            except grpc.RpcError:   # ask again after an error, as LeRobot's RobotClient does
                continue
            if data:
                answers.put(pickle.loads(data))

    def infer(pictures: Any) -> Any:
        observation = TimedObservation(time.time(), next(numbers),
                                       named(list(map(encode, pictures))), True)
        stub.SendObservations(send_bytes_in_chunks(
            pickle.dumps(observation), services_pb2.Observation, silent=True))
        return answers.get()

    threading.Thread(target=receive, daemon=True).start()
    run(infer, folder, period)


if __name__ == '__main__':
    logging.disable(logging.CRITICAL)
    torchvision = prepare()
    side, port_, folder_, *rest = sys.argv[1:]
    if side == 'server':
        serve(int(port_), folder_)
    else:
        act(int(port_), folder_, rest[0], *map(float, rest[1:]))
