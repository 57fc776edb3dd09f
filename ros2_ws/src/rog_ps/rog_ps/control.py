"""Control of a run by services and parameters, and the reasons why the server refuses a call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from fleet_env.errors import VersionError
from fleet_link.key import Key
from fleet_link.seal import Answerer, Call
from rcl_interfaces.msg import SetParametersResult
from rclpy.parameter import Parameter
from rog_core.errors import ConfigError, RogError, shown
from rog_core.method_check import check_named
from rog_core.methods import is_known
from rog_core.protocol.messages import Action
from rog_core.server.server import Server
from rog_msgs.srv import PinModel, SaveCheckpoint, SetSync
from rog_msgs.srv import Stop as StopRun


class Control:
    """Answers the services that control a run, and changes of the parameter `sync`.

    ``services``: type, name and answering function of each service. ``answerer``: opens their
    calls; None: the fleet has no key.

    :param key: key of the fleet; with a key, a call must prove that its caller has it.
    :param is_allowed: whether the fleet takes control calls (`security.control`).
    :param act: carries out actions of ``machine``.
    :param save: writes a checkpoint with this name, and returns its path.
    :param pin: chooses the version of the model that its followers get, and returns a text.
    :param stop: ends the run.
    :param set_parameters: sets parameters of the node, which asks `on_set_parameters`.
    :param refused: called with the reason why a call is refused.
    """

    def __init__(self, machine: Server, key: Key | None, is_allowed: bool, *,
                 act: Callable[[list[Action]], None], save: Callable[[str], object],
                 pin: Callable[[int], str], stop: Callable[[], None],
                 set_parameters: Callable[[list[Parameter]], Sequence[SetParametersResult]],
                 refused: Callable[[str], None]) -> None:
        self._machine, self._keyed, self._is_allowed = machine, key is not None, is_allowed
        self._act, self._save, self._pin, self._stop = act, save, pin, stop
        self._set_parameters, self._refused = set_parameters, refused
        self._changing = False     # whether the node itself is changing its parameters
        self.answerer: Answerer | None = None
        if key is not None:
            control = key.control()
            self.answerer = Answerer(lambda _: control, machine.incarnation)
        self.services = ((SaveCheckpoint, 'save_checkpoint', self._on_save),
                         (SetSync, 'set_sync', self._on_set_sync),
                         (PinModel, 'pin_model', self._on_pin), (StopRun, 'stop', self._on_stop))

    def _refusal(self, call: Call | None) -> str:
        """Return the reason to refuse a call; '' if it is carried out.

        ``call``: None if nobody has sealed the call.
        """
        if not self._is_allowed:
            return 'this fleet takes no control calls (security.control)'
        return 'this fleet has a key; use rog control' if self._keyed and call is None else ''

    def _carry_out(self, response: Any, call: Call | None, what: Callable[[], str]) -> Any:
        """Answer a call of a service.

        :param what: function that carries out the call and returns the text of the answer.
        """
        response.message = self._refusal(call)
        if not response.message:
            try:
                response.message, response.success = what(), True
            except (RogError, VersionError) as error:
                response.message = shown(error)
        if not response.success:
            self._refused(f'refused a control call: {response.message}')
        return response

    def _on_save(self, request: Any, response: Any, call: Call | None) -> Any:
        return self._carry_out(response, call, lambda: str(self._save(request.name)))

    def _on_set_sync(self, request: Any, response: Any, call: Call | None) -> Any:
        return self._carry_out(response, call, lambda: self._set_sync(request.sync))

    def _on_pin(self, request: Any, response: Any, call: Call | None) -> Any:
        return self._carry_out(response, call, lambda: self._pin(request.number))

    def _set_sync(self, sync: str) -> str:
        self._changing = True
        try:
            result, = self._set_parameters([Parameter('sync', value=sync)])
        finally:
            self._changing = False
        if not result.successful:
            raise ConfigError(result.reason)
        return str(self._machine.method)

    def on_set_parameters(self, parameters: list[Parameter]) -> SetParametersResult:
        """Change the synchronisation method (parameter `sync`).

        No other parameter may change while the node runs.
        """
        if not self._changing and (reason := self._refusal(None)):
            return SetParametersResult(successful=False, reason=reason)
        try:
            for parameter in parameters:
                if parameter.name == 'sync':
                    if not self._keyed and not is_known(parameter.value):
                        raise ConfigError('a method named by its module must be loaded already, '
                                          f'got {shown(parameter.value, 80)}: without a key, start '
                                          'the fleet with it')
                    check_named(parameter.value, self._machine.aggregation.team)
                    self._act(self._machine.set_sync(parameter.value, time.monotonic()))
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _on_stop(self, request: Any, response: Any, call: Call | None) -> Any:
        def stop() -> str:
            self._stop()
            return 'stopping'

        return self._carry_out(response, call, stop)
