"""A robot for tests, benches and demonstrations: random images, joints that move without delay."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from fleet_env.settings.base import Settings, setting
from fleet_ros.ending import Interruption
from fleet_ros.parameters import declare
from fleet_ros.process import run, spin_until
from rclpy.node import Node

from . import qos
from .contract import Contract, Observation
from .errors import PolicyError
from .messages import TRAJECTORY, message_class, write

FRAMES = 8   # number of different images, which are published in turn


class RobotSettings(Settings):
    """Settings of the mock robot, which stands for a robot of a policy.

    ``policy`` and ``contract`` mean the same as in the settings of the policy's node.
    """

    policy: str = setting('', 'class of the policy, for its contract', empty=True)
    contract: str = setting('', "file with the contract; empty: the policy's", empty=True)
    seed: int = setting(0, 'seed of what the cameras show', ge=0)


class MockRobot(Node):
    """Publishes the observations of a contract at its rate, and receives the actions.

    If an observation is a list of n numbers, the robot publishes the last action of n
    numbers. Before the first such action the numbers are 0. ``received``: the first
    ``most`` actions, each as (entry, monotonic time in seconds, values (d,)). ``silent``:
    names of entries that are not published.
    """

    def __init__(self, contract: Contract | None = None, **options: Any) -> None:
        # They import PyTorch, and Ctrl+C works only while the node is built.
        from .policy import load_contract
        from .sources import made_up

        super().__init__('mock_robot', **options)
        settings = declare(self, RobotSettings)
        if not (contract or settings.policy or settings.contract):
            raise PolicyError("the parameter 'policy' must be package.module:Class, or 'contract' "
                              'a file; --help names all parameters')
        self.contract = contract or load_contract(settings.policy, settings.contract)
        self.received: list[tuple[str, float, np.ndarray]] = []
        self.silent: set[str] = set()
        self.most = 100_000
        rng = np.random.default_rng(settings.seed)
        self._frames = {name: [made_up(entry, rng) for _ in range(FRAMES)]
                        for name, entry in self.contract.observations.items() if entry.is_image}
        self._last: dict[str, np.ndarray] = {}
        self._count = 0
        # One publisher for each topic, as on a robot, also if several entries read it.
        self._observations = {
            topic: self.create_publisher(message_class(kind), topic, qos.OBSERVATION)
            for topic, kind in {entry.topic: entry.type for entry
                                in self.contract.observations.values()}.items()}
        for name, action in self.contract.actions.items():
            self.create_subscription(message_class(action.type), action.topic,
                                     partial(self._on_action, name), qos.ACTION)
        self.create_timer(1 / self.contract.rate, self._observe)

    def _on_action(self, name: str, message: Any) -> None:
        entry = self.contract.actions[name]
        if entry.type == TRAJECTORY:
            message = message.points[0]
        values = [_get(message, field) for field in entry.fields] if entry.fields \
            else _get(message, entry.field)
        self._last[name] = np.asarray(values, float)
        if len(self.received) < self.most:
            self.received.append((name, time.monotonic(), self._last[name]))

    def _observe(self) -> None:
        self._count += 1
        messages: dict[tuple[str, Any], Any] = {}
        for name, entry in self.contract.observations.items():
            if name not in self.silent:
                # Positions and velocities of the same joints are in one message.
                key = entry.topic, name if entry.is_image else entry.names
                messages[key] = self._message(name, entry, messages.get(key))
        for (topic, _), message in messages.items():
            self._observations[topic].publish(message)

    def _message(self, name: str, entry: Observation, begun: Any) -> Any:
        if entry.is_image:
            message = self._frames[name][self._count % FRAMES]
        else:
            values = next((v for v in self._last.values() if len(v) == entry.count),
                          np.zeros(entry.count))
            message = write(begun or message_class(entry.type)(), entry.field, entry.fields,
                            entry.names, values)
        if hasattr(message, 'header'):
            message.header.stamp = self.get_clock().now().to_msg()
        return message


def _get(message: Any, path: str) -> Any:
    for part in path.split('.'):
        message = getattr(message, part)
    return message


def _topics(entries: Mapping[str, Any]) -> str:
    return ', '.join(dict.fromkeys(entry.topic for entry in entries.values()))


def main(args: Sequence[str] | None = None) -> int:
    """Run the robot until it is stopped."""
    return run(MockRobot, _serve, args, ('fleet_policy', 'rog_tasks'),
               settings=f'{__name__}:RobotSettings')


def _serve(node: Any, interruption: Interruption) -> int:
    contract = node.contract
    node.get_logger().info(
        f'a mock robot publishes {_topics(contract.observations)} at {contract.rate:g} Hz, and '
        f'does what it hears in {_topics(contract.actions)}')
    stopped: list[bool] = []
    spin_until(node, lambda: bool(stopped), interruption, lambda: stopped.append(True))
    return 0


if __name__ == '__main__':
    sys.exit(main())
