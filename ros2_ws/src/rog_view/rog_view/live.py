"""Receives the statuses of a fleet on a separate thread, so that a page never waits for them."""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Any

from fleet_link.key import Key
from rcl_interfaces.srv import GetParameters
from rog_cli.commands.control import ControlError, Controls, answer
from rog_cli.display.view import Monitor, place
from rog_ros.parameters import SERVER

from .source import View, view_of

STEP = 0.5      # seconds between two updates of the view, the content of a page
ANSWER = 10.0   # seconds within which the server must answer a call
AGAIN = 5.0     # seconds between two parameter calls to a server that does not answer
CONTROL, MINUTES = 'security.control', 'minutes'


class Live:
    """The fleet in this DDS domain and namespace.

    :param key: key of the fleet, if it has one.
    """

    live = True

    def __init__(self, namespace: str = '', key: Key | None = None) -> None:
        self._key = key
        self._monitor = Monitor(namespace, key)
        self._controls = Controls(self._monitor, key)
        self._parameters = self._monitor.node.create_client(
            GetParameters, f'{namespace}/{SERVER}/parameter_server/get_parameters')
        # Future of the server's answer to the call for its parameters `CONTROL` and `MINUTES`.
        self._question: Any = None
        # Incarnation of the server process that was called, and the time of the call.
        self._whom, self._since = 0, 0.0
        self.view = self._look()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name='rog_view', daemon=True)

    def _listen(self) -> None:
        while not self._ended.is_set():
            self._monitor.spin(STEP)
            self._inquire()
            self.view = self._look()

    def _inquire(self) -> None:
        """Ask each new server process for its parameters `CONTROL` and `MINUTES`, until it answers.

        A server that has no time left for such calls gives an empty answer. Then the function asks
        this server again later.
        """
        fleet, now = self._monitor.fleet, time.monotonic()
        if fleet is None or not self._parameters.service_is_ready():
            return
        asked, done = self._question, self._question is not None and self._question.done()
        unanswered = asked is not None and not (done and asked.result().values)
        if fleet.incarnation != self._whom or (unanswered and now - self._since > AGAIN):
            if asked is not None and not done:
                self._parameters.remove_pending_request(self._question)
            self._whom, self._since = fleet.incarnation, now
            self._question = self._parameters.call_async(
                GetParameters.Request(names=[CONTROL, MINUTES]))

    def _look(self) -> View:
        now, state = time.monotonic(), self._monitor.state
        silent = '' if state.fleet is None or state.fleet.state == 'stopped' \
            or not state.is_silent(now) \
            else f'no word from the parameter server for {now - state.heard_fleet:.0f} s'
        where = place(self._monitor.namespace)
        notice = silent
        if state.fleet is None:
            notice = f'no parameter server found in {where} yet; rog doctor searches for reasons' \
                if not self._monitor.unproved else 'there is a parameter server, but its status ' \
                'is not proved by this key'
        state.minutes = self._minutes()
        faults = [f'server: {fault}' for fault in state.shown(now).faults]
        return view_of(state, now, where, '\n'.join(filter(None, (notice, *faults))),
                       silent or self._unable())

    def _minutes(self) -> float:
        """Return the duration of the run in minutes; 0 until the server has answered."""
        answer = self._question
        if answer is None or not answer.done() or self._whom != self._monitor.fleet.incarnation:
            return 0.0
        return answer.result().values[1].double_value if len(answer.result().values) > 1 else 0.0

    def _unable(self) -> str:
        if reason := self._controls.unable():
            return reason
        fleet = self._monitor.fleet
        if fleet.state not in ('training', 'paused'):
            return 'the run is over' if fleet.state == 'stopped' else 'the run is ending'
        if len(fleet.tag) and self._key is None:
            return 'this fleet has a key: start rog view with --key FILE'
        # A server with a key has no parameter services, so its parameter `CONTROL` is unknown here.
        # If the server accepts no control calls, its answer to a call says so.
        if len(fleet.tag):
            return ''
        if not self._parameters.service_is_ready():
            return f'this fleet takes no control calls ({CONTROL})'
        if self._question is None or not self._question.done() \
                or self._whom != fleet.incarnation:
            return 'asking the server whether it takes control calls'
        values = self._question.result().values
        if not (values and values[0].bool_value):
            return f'this fleet takes no control calls ({CONTROL})'
        return ''

    async def ask(self, service: str, **values: str) -> str:
        """Call a control service and return its answer.

        :raises ControlError: no call is possible now, the server refuses, or it does not answer.
        """
        if reason := self.view.unable:
            raise ControlError(reason)
        future = self._controls.call(service, **values)
        end = time.monotonic() + ANSWER
        while not future.done():
            if time.monotonic() >= end:
                raise ControlError(self._controls.silence)
            await asyncio.sleep(0.05)
        return answer(future)

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(10 * STEP)  # the thread ends after its present step
        self._monitor.__exit__(kind, error, trace)
