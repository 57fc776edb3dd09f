"""Control of a run by services and parameters, and the reasons why the server refuses a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fleet_env.errors import VersionError
from fleet_link.key import Key
from fleet_link.seal import Answerer, Call
from fleet_ros.sealing import serve
from rcl_interfaces.msg import SetParametersResult
from rclpy.parameter import Parameter
from rog_core.errors import ConfigError, RogError, shown
from rog_core.method_check import check_named
from rog_core.methods import is_known
from rog_msgs.srv import PinModel, SaveCheckpoint, SetSync
from rog_msgs.srv import Stop as StopRun

if TYPE_CHECKING:
    from .node import ParameterServerNode


class Control:
    """The services that control the server's node.

    :param key: key of the fleet; with a key, a call must prove that its caller has it.
    """

    def __init__(self, node: ParameterServerNode, key: Key | None) -> None:
        self._node = node
        self._keyed = key is not None
        self._changing = False     # whether the node itself is changing its parameters
        answerer = None
        if key is not None:
            control = key.control()
            answerer = Answerer(lambda _: control, node.machine.incarnation)
        for kind, name, on_call in ((SaveCheckpoint, 'save_checkpoint', self._on_save),
                                    (SetSync, 'set_sync', self._on_set_sync),
                                    (PinModel, 'pin_model', self._on_pin),
                                    (StopRun, 'stop', self._on_stop)):
            serve(node, kind, name, on_call, answerer, self._note_refusal)
        node.add_on_set_parameters_callback(self._on_set_parameters)
        node.held.callback(node.remove_on_set_parameters_callback, self._on_set_parameters)

    def _refusal(self, call: Call | None) -> str:
        """Return the reason to refuse a call; '' if it is carried out.

        ``call``: None if nobody has sealed the call.
        """
        if not self._node.settings.security.control:
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
            self._note_refusal(f'refused a control call: {response.message}')
        return response

    def _note_refusal(self, reason: str) -> None:
        self._node.dropped['control'] += 1
        self._node.get_logger().warning(reason, throttle_duration_sec=5.0)

    def _on_save(self, request: Any, response: Any, call: Call | None) -> Any:
        return self._carry_out(response, call, lambda: str(self._node.save(request.name)))

    def _on_set_sync(self, request: Any, response: Any, call: Call | None) -> Any:
        return self._carry_out(response, call, lambda: self._set_sync(request.sync))

    def _on_pin(self, request: Any, response: Any, call: Call | None) -> Any:
        return self._carry_out(response, call, lambda: self._node.pin(request.number))

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
        if not self._changing and (reason := self._refusal(None)):
            return SetParametersResult(successful=False, reason=reason)
        try:
            for parameter in parameters:
                if parameter.name == 'sync':
                    if not self._keyed and not is_known(parameter.value):
                        raise ConfigError('a method named by its module must be loaded already, '
                                          f'got {shown(parameter.value, 80)}: without a key, start '
                                          'the fleet with it')
                    machine = self._node.machine
                    check_named(parameter.value, machine.aggregation.team)
                    self._node.act(machine.set_sync(parameter.value, time.monotonic()))
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _on_stop(self, request: Any, response: Any, call: Call | None) -> Any:
        def stop() -> str:
            self._node.request_stop('stopped by request')
            return 'stopping'

        return self._carry_out(response, call, stop)
