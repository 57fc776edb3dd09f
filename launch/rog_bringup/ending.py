"""Ends a launch within seconds after the run's end or a signal, and sets its exit code."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from fleet_ros.ending import LAST, ORDERLY, RUN_OVER, SIGNALS, launched
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

# For every process that a launch file starts: seconds from the shutdown to SIGTERM, and seconds
# from SIGTERM to SIGKILL.
TIMES: dict[str, Any] = {'sigterm_timeout': str(ORDERLY), 'sigkill_timeout': str(LAST)}

# Exit codes of a process that ended as requested: 0, or the number of a signal, written as -number
# (Python) or 128 + number (shell).
_ASKED = {0, *(-number for number in SIGNALS), *(128 + number for number in SIGNALS)}


class Ending:
    """Ends the launch when its processes have ended; the launch fails if one of them has failed.

    :param server: process of the server; None if it does not run here.
    :param robots: processes of the robots.
    :param run: whether the processes form a run. A run ends when all robots here have ended, or
        when the server has ended. If the server ends without failure, robots have `RUN_OVER`
        seconds to end. If the server fails, the launch ends at once.
        If ``run`` is false, the launch checks for failures when the server ends: it fails if the
        server or a process that ended before has failed.
    :param needed: the launch also ends when all of these processes have ended and at least one of
        them has failed, even if others still run.
    """

    def __init__(self, server: Any | None, robots: Sequence[Any], run: bool,
                 needed: Sequence[Any] = ()) -> None:
        self._server, self._run = server, run
        self._running = [*([server] if server else []), *robots]
        self._needed, self._needed_failed = [*needed], False
        self._failed: list[str] = []

    def actions(self) -> list[Any]:
        """Return the actions that must precede the processes in the launch description."""
        handlers = [OnProcessExit(target_action=process, on_exit=lambda event, context, p=process:
                                  self._on_exit(p, event, context)) for process in self._running]
        return [*(SetEnvironmentVariable(*item) for item in launched().items()),
                *(RegisterEventHandler(handler) for handler in handlers),
                RegisterEventHandler(OnShutdown(on_shutdown=self._on_shutdown))]

    def _on_shutdown(self, event: Any, context: Any) -> list[Any]:
        """Send SIGTERM to the processes if a SIGINT has ended the launch.

        After a SIGINT, launch itself sends them nothing, because it assumes that the terminal has
        sent the SIGINT to the processes, too.
        """
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
        if process in self._needed:
            self._needed.remove(process)
            self._needed_failed |= not good
            if self._needed_failed and not self._needed and not context.is_shutdown:
                self._fail(over=True)
        if context.is_shutdown:
            self._fail(over=not self._running)
            return []
        if process is self._server and good and self._run and self._running:
            # The server has told the robots to end. A robot that has not found the server keeps
            # running, so the launch ends it after `RUN_OVER` seconds.
            return [TimerAction(period=RUN_OVER, actions=[Shutdown(reason='the run is over')])]
        over = process is self._server or self._running in ([], [self._server])
        self._fail(over and (self._run or process is self._server))
        return [Shutdown(reason='the run is over')] if over and self._run else []

    def _fail(self, over: bool) -> None:
        if over and self._failed:  # an exception makes `ros2 launch` end with exit code 1
            raise RuntimeError(f'failed: {", ".join(self._failed)}')
