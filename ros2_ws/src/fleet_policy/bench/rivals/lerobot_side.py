"""Run LeRobot's async_inference; its server and client are not modified.

    python lerobot_side.py save FOLDER           writes an ACT policy with random weights
    python lerobot_side.py server PORT           runs LeRobot's policy server
    python lerobot_side.py client PORT FOLDER    acts until it is ended

This program needs an environment with lerobot[async]. For each action that it executes,
the client prints the monotonic time and the age of the action, both in seconds. The
robot is a mock. Its joints move, because the server skips observations that are too
similar.
"""

from __future__ import annotations

import importlib
import logging
import math
import sys
import threading
import time
from concurrent import futures
from typing import Any

import numpy as np
import torch

RATE, CHUNK, JOINTS, HEIGHT, WIDTH = 30, 100, 7, 480, 640
CAMERAS = ('top', 'wrist')


def prepare() -> Any:
    """Make torchvision importable with PyTorch's CPU build, which lacks two operator schemas."""
    try:
        return importlib.import_module('torchvision')
    except RuntimeError:
        library = torch.library.Library('torchvision', 'DEF')
        for op in ('nms', 'qnms'):
            library.define(f'{op}(Tensor dets, Tensor scores, float iou) -> Tensor')
        return library


def save(folder: str) -> None:
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors
    torch.manual_seed(0)
    images = {f'observation.images.{name}': (3, HEIGHT, WIDTH) for name in CAMERAS}
    config = ACTConfig(
        input_features={
            **{name: PolicyFeature(FeatureType.VISUAL, shape) for name, shape in images.items()},
            'observation.state': PolicyFeature(FeatureType.STATE, (JOINTS,))},
        output_features={'action': PolicyFeature(FeatureType.ACTION, (JOINTS,))},
        chunk_size=CHUNK, n_action_steps=CHUNK, pretrained_backbone_weights=None, device='cpu')
    statistics = {name: {'mean': torch.zeros(size), 'std': torch.ones(size)} for name, size in (
        *((name, (3, 1, 1)) for name in images), ('observation.state', (JOINTS,)),
        ('action', (JOINTS,)))}
    parts = (ACTPolicy(config), *make_pre_post_processors(config, dataset_stats=statistics))
    for part in parts:
        part.save_pretrained(folder)


def serve(port: int) -> None:
    import grpc
    from lerobot.async_inference.configs import PolicyServerConfig
    from lerobot.async_inference.policy_server import PolicyServer
    from lerobot.transport import services_pb2_grpc
    config = PolicyServerConfig(host='127.0.0.1', port=port, fps=RATE)
    # LeRobot's own `serve` uses the same number of workers
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(PolicyServer(config), server)
    server.add_insecure_port(f'127.0.0.1:{port}')
    server.start()
    print('serving', flush=True)
    server.wait_for_termination()


class Robot:
    """A mock robot with two cameras and seven joints."""

    name = robot_type = 'mock'
    is_connected = True
    action_features = dict.fromkeys((f'joint{k}.pos' for k in range(JOINTS)), float)
    observation_features = {**action_features, **dict.fromkeys(CAMERAS, (HEIGHT, WIDTH, 3))}

    def __init__(self) -> None:
        self._images = np.random.default_rng(0).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)

    def connect(self) -> None:
        """Do nothing, because a mock has no connection."""

    disconnect = connect

    def get_observation(self) -> dict[str, Any]:
        joint = 100 * math.sin(time.monotonic())
        return {**dict.fromkeys(self.action_features, joint),
                **dict(zip(CAMERAS, self._images, strict=True))}

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        return action


def act(port: int, folder: str) -> None:
    from lerobot.async_inference import robot_client
    from lerobot.async_inference.configs import RobotClientConfig
    from lerobot.robots.config import RobotConfig
    robot_client.make_robot_from_config = lambda config: Robot()
    # Maps the step of an action to the time of the action's observation, from time.time().
    observed: dict[int, float] = {}

    class Noted(robot_client.RobotClient):
        """Records the time of each action's observation, and prints the age of each action."""

        def _aggregate_action_queues(self, incoming: list[Any], aggregate: Any = None) -> None:
            for action in incoming:
                observed[action.get_timestep()] = incoming[0].get_timestamp()
            super()._aggregate_action_queues(incoming, aggregate)

        def control_loop_action(self, verbose: bool = False) -> Any:
            done = super().control_loop_action(verbose)
            print(time.monotonic(), time.time() - observed[self.latest_action], flush=True)
            return done

    @RobotConfig.register_subclass('rog_mock')
    class Config(RobotConfig):
        """A configuration without settings."""

    client = Noted(RobotClientConfig(
        policy_type='act', pretrained_name_or_path=folder, robot=Config(), fps=RATE,
        actions_per_chunk=CHUNK, server_address=f'127.0.0.1:{port}'))
    if not client.start():
        raise SystemExit('the client does not start')
    threading.Thread(target=client.receive_actions, daemon=True).start()
    client.control_loop('')


if __name__ == '__main__':
    logging.disable(logging.CRITICAL)
    torchvision = prepare()
    verb, *given = sys.argv[1:]
    if verb == 'save':
        save(given[0])
    elif verb == 'server':
        serve(int(given[0]))
    else:
        act(int(given[0]), given[1])
