"""Control of a run from outside: services and parameters, and why a call of one is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.parameter import Parameter
from rog_core.errors import ConfigError, RogError, shown
from rog_msgs.srv import SaveCheckpoint, SetSync
from rog_msgs.srv import Stop as StopRun
from rog_ros.seal import Key, SealError, check, process_of

if TYPE_CHECKING:
    from .node import ParameterServerNode


class Control:
    """Services of the server's node, which does what they ask for.

    ``key``: of the fleet; with one, a call has to prove that its caller has it.
    """

    def __init__(self, node: ParameterServerNode, key: Key | None) -> None:
        self._node = node
        self._key = key and key.control()
        self._latest = 0           # time of the last call, ns
        self._changing = False     # the node changes its own parameters
        node.create_service(SaveCheckpoint, 'save_checkpoint', self._on_save)
        node.create_service(SetSync, 'set_sync', self._on_set_sync)
        node.create_service(StopRun, 'stop', self._on_stop)
        node.add_on_set_parameters_callback(self._on_set_parameters)
        node.held.callback(node.remove_on_set_parameters_callback, self._on_set_parameters)

    def _refusal(self, request: Any = None) -> str:
        """Return why a call is refused; empty if it is carried out.

        ``request``: of one of our services; None: parameters, which cannot carry a tag.
        """
        if not self._node.settings.security.control:
            return 'this fleet takes no control calls (security.control)'
        if self._key is None:
            return ''
        if request is None:
            return 'this fleet has a key; use rog control'
        try:
            check(self._key, request)
        except SealError as error:
            return f'the call is not proved: {error}. Use rog control with the key of the fleet'
        if request.server != process_of(self._node.machine.incarnation):
            return 'the call is not for this server process'
        if request.time <= self._latest:
            return 'a later call was carried out already; is the clock of this machine slow?'
        self._latest = request.time
        return ''

    def _carry_out(self, request: Any, response: Any, what: Callable[[], str]) -> Any:
        """Answer a call; ``what`` does what it asks for and returns the answer."""
        response.message = self._refusal(request)
        if not response.message:
            try:
                response.message, response.success = what(), True
            except RogError as error:
                response.message = shown(error)
        if not response.success:
            self._node.dropped['control'] += 1
            self._node.get_logger().warning(f'refused a control call: {response.message}',
                                            throttle_duration_sec=5.0)
        return response

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
        """Change the method; no other parameter may change while the node runs."""
        if not self._changing and (reason := self._refusal()):
            return SetParametersResult(successful=False, reason=reason)
        try:
            for parameter in parameters:
                if parameter.name == 'sync':
                    self._node.act(self._node.machine.set_sync(parameter.value, time.monotonic()))
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _on_stop(self, request: Any, response: Any) -> Any:
        def stop() -> str:
            self._node.request_stop('stopped by request')
            return 'stopping'

        return self._carry_out(request, response, stop)
