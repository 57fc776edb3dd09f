"""Control of a run by services and parameters, and the reasons why the server refuses a call."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fleet_ros.services import Allowance
from rcl_interfaces.msg import SetParametersResult
from rclpy.parameter import Parameter
from rog_core.errors import ConfigError, RogError, shown
from rog_core.method_check import check_named
from rog_core.methods import is_known
from rog_msgs.srv import SaveCheckpoint, SetSync
from rog_msgs.srv import Stop as StopRun
from rog_ros.message_auth import Key, SealError, check, derived, process_of, sealed

if TYPE_CHECKING:
    from .node import ParameterServerNode


REPEATED = 64       # maximum number of kept answers, each for a call that may arrive again
REMEMBERED = 10_000  # maximum number of calls whose times are kept


class Calls:
    """Recognises repeated calls by the time at which their caller made them.

    A call is accepted only if its time is later than the times of all accepted calls. This
    comparison leaves out times that are in the future by the server's clock. Otherwise later calls
    would look old in two cases: the clock of one caller was ahead, or all clocks were ahead and
    have been set back. A call with a time in the future is also carried out only once.
    """

    def __init__(self) -> None:
        # For each call that was carried out: the time at which its caller made it, ns since 1970.
        # If that time was in the future by the server's clock, the server's own time is here, too.
        self._done: set[int] = set()

    def refusal(self, made: int, now: int) -> str:
        """Return why a call is refused; if it is accepted, remember its time and return ''.

        :param made: time at which the caller made the call, ns since 1970.
        :param now: present time of the server's clock, ns since 1970.
        """
        if made in self._done:
            return 'this call was carried out already'
        latest = max((time for time in self._done if time <= now), default=0)
        if made <= latest:
            return ('the call must be made after the last one that was carried out, got one '
                    f'{(latest - made) / 1e9:.3f} s before it: it was carried out already, '
                    'or the clock of the machine that calls is behind; set it')
        self._done |= {made, min(made, now)}
        while len(self._done) > REMEMBERED:
            self._done.remove(min(self._done))
        return ''


class Control:
    """The services that control the server's node.

    :param key: key of the fleet; with a key, a call must prove that its caller has it.
    """

    def __init__(self, node: ParameterServerNode, key: Key | None) -> None:
        self._node = node
        self._key = key and key.control()
        self._seal = self._key and derived(self._key, 'answer')
        # Tag of a call that was carried out -> (whether it succeeded, its answer); newest last.
        self._answered: OrderedDict[bytes, tuple[bool, str]] = OrderedDict()
        self._calls, self._allowance = Calls(), Allowance()
        self._changing = False     # whether the node itself is changing its parameters
        node.create_service(SaveCheckpoint, 'save_checkpoint', self._on_save)
        node.create_service(SetSync, 'set_sync', self._on_set_sync)
        node.create_service(StopRun, 'stop', self._on_stop)
        node.add_on_set_parameters_callback(self._on_set_parameters)
        node.held.callback(node.remove_on_set_parameters_callback, self._on_set_parameters)

    def _unproved(self, request: Any) -> str:
        """Return why a call does not prove that its caller has the fleet key.

        Return '' if the call proves it.
        """
        if self._key is None:
            return ''
        try:
            check(self._key, request)
        except SealError as error:
            return f'the call is not proved: {error}. Use rog control with the key of the fleet'
        return ''

    def _refusal(self, request: Any = None) -> str:
        """Return the reason to refuse a call, apart from a wrong tag; '' if it is carried out.

        :param request: request of one of our services; None: a call that sets parameters, which
            cannot carry a tag.
        """
        if not self._node.settings.security.control:
            return 'this fleet takes no control calls (security.control)'
        if self._key is None:
            left = self._allowance.left(time.monotonic())
            return '' if left > 0 else (
                'control calls must leave the server time to train: wait '
                f'{math.ceil(-10 * left + 1)} s, or give the fleet a key (rog key)')
        if request is None:
            return 'this fleet has a key; use rog control'
        if request.server != process_of(self._node.machine.incarnation):
            return 'the call is not for this server process'
        return self._calls.refusal(request.time, time.time_ns())

    def _carry_out(self, request: Any, response: Any, what: Callable[[], str]) -> Any:
        """Answer a call of a service.

        With a key, the answer carries a tag that authenticates the answer and also covers the tag
        of the call. The answer to an unauthenticated call carries no tag. If it carried one, a
        stranger could copy the tag of another caller's call into a call of its own, and pass
        the answer to that caller as genuine. A repeated call gets the same answer again.

        :param what: function that carries out the call and returns the text of the answer.
        """
        unproved, tag = self._unproved(request), bytes(request.tag)
        if not unproved and tag in self._answered:
            response.success, response.message = self._answered[tag]
            return sealed(self._seal, response, tag)
        response.message = unproved or self._refusal(request)
        if not response.message:
            began = time.monotonic()
            try:
                response.message, response.success = what(), True
            except RogError as error:
                response.message = shown(error)
            self._allowance.spend(time.monotonic() - began, time.monotonic())
            self._note(tag, response)
        if not response.success:
            self._node.dropped['control'] += 1
            self._node.get_logger().warning(f'refused a control call: {response.message}',
                                            throttle_duration_sec=5.0)
        return response if unproved else sealed(self._seal, response, tag)

    def _note(self, tag: bytes, response: Any) -> None:
        """Keep the answer to an authenticated call that was carried out."""
        if self._key is not None:
            self._answered[tag] = response.success, response.message
            if len(self._answered) > REPEATED:
                self._answered.popitem(last=False)

    def _on_save(self, request: Any, response: Any) -> Any:
        return self._carry_out(request, response, lambda: str(self._node.save(request.name)))

    def _on_set_sync(self, request: Any, response: Any) -> Any:
        return self._carry_out(request, response, lambda: self._set_sync(request.sync))

    def _set_sync(self, sync: str) -> str:
        self._changing = True
        try:
            result, = self._node.set_parameters([Parameter('sync', value=sync)])
        finally:
            self._changing = False
        if not result.successful:
            raise ConfigError(result.reason)
        return str(self._node.machine.method)

    def _on_set_parameters(self, parameters: list[Parameter]) -> SetParametersResult:
        """Change the synchronisation method (parameter `sync`).

        No other parameter may change while the node runs.
        """
        if not self._changing and (reason := self._refusal()):
            return SetParametersResult(successful=False, reason=reason)
        try:
            for parameter in parameters:
                if parameter.name == 'sync':
                    if self._key is None and not is_known(parameter.value):
                        raise ConfigError('a method named by its module must be loaded already, '
                                          f'got {shown(parameter.value, 80)}: without a key, start '
                                          'the fleet with it')
                    machine = self._node.machine
                    check_named(parameter.value, machine.aggregation.team)
                    self._node.act(machine.set_sync(parameter.value, time.monotonic()))
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _on_stop(self, request: Any, response: Any) -> Any:
        def stop() -> str:
            self._node.request_stop('stopped by request')
            return 'stopping'

        return self._carry_out(request, response, stop)
