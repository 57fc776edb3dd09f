"""How a launch ends: when its run is over, in seconds after any signal, and with what exit code."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from fleet_ros.ending import LAST, ORDERLY, SIGNALS, launched
from launch.actions import (
    EmitEvent,
    RegisterEventHandler,
    SetEnvironmentVariable,
    Shutdown,
    TimerAction,
)
from launch.event_handlers import OnProcessExit, OnShutdown
from launch.events import matches_action
from launch.events.process import SignalProcess

# Of every process that a launch file starts: how long launch waits until it sends SIGTERM, and
# until it kills.
TIMES = {'sigterm_timeout': str(ORDERLY), 'sigkill_timeout': str(LAST)}
LINGER = 15.0  # s that robots may take to end when the run is over

# What a process that was asked to end may end with: 0, or the signal, as a shell writes it or not.
_ASKED = {0, *(-number for number in SIGNALS), *(128 + number for number in SIGNALS)}


class Ending:
    """Ends the launch, and lets it fail when a process of it has failed.

    :param server: without it the launch ends; when it ends well, the run is over.
    :param robots: when all of them have ended, and something failed or a run is over, it ends too.
    """

    def __init__(self, server: Any | None, robots: Sequence[Any], run: bool) -> None:
        self._server, self._run = server, run
        self._running = [*([server] if server else []), *robots]
        self._failed: list[str] = []

    def actions(self) -> list[Any]:
        """Return what the launch description needs, before the processes."""
        handlers = [OnProcessExit(target_action=process, on_exit=lambda event, context, p=process:
                                  self._on_exit(p, event, context)) for process in self._running]
        return [*(SetEnvironmentVariable(*item) for item in launched().items()),
                *(RegisterEventHandler(handler) for handler in handlers),
                RegisterEventHandler(OnShutdown(on_shutdown=self._on_shutdown))]

    def _on_shutdown(self, event: Any, context: Any) -> list[Any]:
        """Ask the processes where launch does not: it takes a SIGINT for one that they have too."""
        if not event.due_to_sigint or context.noninteractive:
            return []
        return [EmitEvent(event=SignalProcess(signal_number=signal.SIGTERM,
                                              process_matcher=matches_action(process)))
                for process in self._running if process.process_details]

    def _on_exit(self, process: Any, event: Any, context: Any) -> list[Any]:
        self._running.remove(process)
        good = event.returncode in _ASKED if context.is_shutdown else not event.returncode
        if not good:
            self._failed.append(f'{event.process_name} (exit code {event.returncode})')
        if context.is_shutdown:
            self._fail(over=not self._running)
            return []
        if process is self._server and good and self._run and self._running:
            # They end on the server's word; one that has never heard of it does not.
            return [TimerAction(period=LINGER, actions=[Shutdown(reason='the run is over')])]
        over = process is self._server or self._running in ([], [self._server])
        self._fail(over and (self._run or process is self._server))
        return [Shutdown(reason='the run is over')] if over and self._run else []

    def _fail(self, over: bool) -> None:
        if over and self._failed:  # an exception makes `ros2 launch` end with exit code 1
            raise RuntimeError(f'failed: {", ".join(self._failed)}')
