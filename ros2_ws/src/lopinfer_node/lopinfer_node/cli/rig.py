"""A robot and a server on one machine with an emulated link: for the demo and the benches.

The server is a separate process, the robot is this process; each computes on one thread. They
exchange messages over DDS. `ShapedLink` emulates rate and delay of the link, as it does for
fleets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fleet_env.command import how_it_ended
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.links.trace import LinkTrace, write_trace
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.ending import launched
from fleet_ros.environment import dds_environment
from rclpy.logging import LoggingSeverity, set_logger_level
from torch.utils import _pytree as pytree

from ..api import OffloadedModel
from ..errors import RemoteError
from ..model.traced import Traced
from ..planning.profile import Profile
from ..ros.client_shell import ClientOptions, Planner
from ..runtime.choice import PlannedTable
from ..runtime.planner import TablePlanner
from ..runtime.store import Store

SERVER = 'from lopinfer_node.nodes import server_main; raise SystemExit(server_main())'
# maximum seconds until a server is ready: it loads and measures the model, and accepts plans
START = 120.0
END = 30.0          # seconds after which a server that was told to end is killed
WARM_UP = 2         # number of requests at the start that are not measured


@dataclass(frozen=True)
class Measured:
    """The measured requests of one method; all times are in seconds.

    `latency`: one value per request. `estimate`: latency that the planner expects. `device`,
    `server`, `transfer`, `overlap`, `sent`: medians of the fields of `Report` with the same names.
    `offloaded`: number of requests that used the server. `error`: largest difference from the
    output of the unsplit model, divided by the largest element of that output.
    """

    method: str
    latency: np.ndarray
    estimate: float
    offloaded: int
    error: float
    device: float
    server: float
    transfer: float
    overlap: float
    sent: float

    @property
    def median(self) -> float:
        """Return the median latency in seconds."""
        return float(np.median(self.latency))


class _Once:
    """A planner that plans once: its tables are for every bandwidth."""

    def __init__(self, planner: TablePlanner) -> None:
        self.planner = planner
        self._made: list[PlannedTable] = []

    def __call__(self, traced: Traced, fixed: np.ndarray, per_share: np.ndarray
                 ) -> list[PlannedTable]:
        self._made = self._made or list(self.planner(traced, fixed, per_share))
        return self._made


def _no_plans(traced: Traced, fixed: np.ndarray, per_share: np.ndarray) -> Sequence[PlannedTable]:
    return ()


class Rig:
    """A server and a link that stay open while `measure` runs several methods.

    ``rate``: bytes/s in each direction, see `set_rate`. With None, no link is emulated, and
    ``latency`` has no effect. ``latency``: delay in each direction, in seconds. ``slowdown``: the
    robot computes this many times slower than this machine. ``device``: the server's device.
    ``traced``: the traced model, while the rig is open.
    """

    traced: Traced

    def __init__(self, model: torch.nn.Module, example: torch.Tensor, rate: float | None,
                 latency: float = 0.0, folder: Path | None = None,
                 slowdown: float = 1.0, device: str = 'cpu') -> None:
        self.model, self.example, self.device = model, example, device
        self.rate, self.latency = rate, latency
        with torch.no_grad():
            self.want: list[torch.Tensor] = pytree.tree_leaves(model(example))
        self._folder = folder
        self.slowdown = slowdown
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._model = OffloadedModel(model, '', ClientOptions(_no_plans))   # traces the model
        self._first: OffloadedModel | None = None   # makes the server try the model
        self._planners: dict[str, _Once] = {}

    def __enter__(self) -> Rig:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory()
            self._folder = Path(self._temporary.name)
        parameters: dict[str, Any] = {'directory': self._folder, 'threads': 1,
                                      'device': self.device}
        if self.rate is not None:
            parameters |= {'link.trace': self._link, 'link.latency': float(self.latency)}
            self.set_rate(self.rate)
        arguments = [a for name, value in parameters.items() for a in ('-p', f'{name}:={value}')]
        self._process = subprocess.Popen(
            [sys.executable, '-c', SERVER, '--ros-args', '--log-level', 'warn',
             '-r', '__ns:=/lopinfer', *arguments], env=dict(os.environ))
        # While the server starts, put the model where it looks for it: the robot need not send it.
        try:
            self.traced = self._model.trace(self.example)
            Store(self._folder).add(self.traced)
            # The server tries and loads the model while the user of this object measures the robot.
            set_logger_level('first.lopinfer', LoggingSeverity.WARN)
            self._first = self._model.again('first', ClientOptions(_no_plans))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._close_first()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(END)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def _link(self) -> Path:
        assert self._folder is not None
        return self._folder / 'link.txt'

    def set_rate(self, rate: float) -> None:
        """Emulate this rate, bytes/s in each direction, for robots that connect from now on."""
        # The server reads the file whenever a robot joins.
        write_trace(self._link, LinkTrace([0.0], [rate * 8e-6]))
        self.rate = rate

    def measure(self, method: str, profile: Profile, requests: int, delay: float) -> Measured:
        """Run `requests` shared inferences with the plans of one method, and measure them.

        ``profile``: profile of the slowed robot. ``delay``: the planner assumes this delay of
        the link in each direction, in seconds.
        """
        planner = TablePlanner(method, profile, latency=delay)
        if (kept := self._planners.get(method)) is None or kept.planner != planner:
            kept = self._planners[method] = _Once(planner)
        with self.robot(kept, method) as shared:
            alone = float(profile.whole.sum())
            return measure(shared, self.example, self.want, method, requests, alone)

    @contextmanager
    def robot(self, planner: Planner, name: str) -> Iterator[OffloadedModel]:
        """Wait until the server is ready, then yield a model that is shared with it."""
        link = ShapedLink() if self.rate is None else \
            ShapedLink(LinkTrace([0.0], [self.rate * 8e-6]), self.latency)
        robot = name.replace('-', '_')
        set_logger_level(f'{robot}.lopinfer', LoggingSeverity.WARN)   # results only
        options = ClientOptions(planner, link=link, slowdown=self.slowdown)
        shared = self._model.again(robot, options)
        try:
            end = time.monotonic() + START
            while not shared.wait(1.0):
                if self._process is not None and (code := self._process.poll()) is not None:
                    raise RemoteError(f'the server must run, but {how_it_ended(code)}; '
                                      f'see its output above')
                if time.monotonic() > end:
                    raise RemoteError(f'the server is not ready after {START:g} s: '
                                      f'{shared.reason or "it does not answer"}')
            self._close_first()
            yield shared
        finally:
            shared.close()

    def _close_first(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            first.close()


def measure(shared: OffloadedModel, example: torch.Tensor, want: Sequence[torch.Tensor],
            method: str, requests: int, alone: float) -> Measured:
    """Run requests one after the other and measure them.

    The times of the first `WARM_UP` requests do not count. ``want``: the correct outputs.
    ``alone``: expected latency in seconds if the robot computes alone.
    """
    rows: list[Sequence[float]] = []
    estimate, offloaded, error = float('nan'), 0, 0.0
    for turn in range(WARM_UP + requests):
        before = time.perf_counter()
        got = shared(example)
        seconds = time.perf_counter() - before
        report = shared.report
        assert report is not None
        error = max(error, *(float((g - w).abs().max() / w.abs().max())
                             for g, w in zip(pytree.tree_leaves(got), want, strict=True)))
        if turn == WARM_UP - 1:
            offloaded = report.offloaded
        if turn >= WARM_UP:
            rows.append((seconds, report.device, report.server, report.transfer, report.overlap,
                         report.sent))
            estimate = alone if np.isnan(report.estimate) else report.estimate
    assert report is not None
    table = np.array(rows)
    return Measured(method, table[:, 0], estimate, report.offloaded - offloaded,
                    error, *(float(x) for x in np.median(table[:, 1:], 0)))


@contextmanager
def private_domain() -> Iterator[None]:
    """Keep DDS on loopback while the context is open.

    The domain is ``ROS_DOMAIN_ID`` if the user has set it, otherwise a domain derived from the
    process id.
    """
    chosen = os.environ.get('ROS_DOMAIN_ID') or str(1 + os.getpid() % 100)
    before = dict(os.environ)
    os.environ.update({**dds_environment(ReachConfig()), 'ROS_DOMAIN_ID': chosen, **launched()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
