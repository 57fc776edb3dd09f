"""Nodes that start themselves or are driven by a lifecycle manager (REP-2002).

Each node implements its own transitions. This module has the common part: `autostart`, the
treatment of errors that are the user's fault, and the release of everything that a node has made.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any, ClassVar

from fleet_env.settings.base import Settings, setting
from rclpy.lifecycle import LifecycleNodeMixin, TransitionCallbackReturn
from rclpy.node import Node

from .ending import STAYS
from .exposure import key_file
from .parameters import declare_early
from .process import is_users
from .services import bound_parameters, is_name

SUCCESS, FAILURE, ERROR = (TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE,
                           TransitionCallbackReturn.ERROR)
_KINDS = {'publisher': 'publishers', 'subscription': 'subscriptions', 'client': 'clients',
          'service': 'services', 'timer': 'timers', 'guard_condition': 'guards'}


class ManagedSettings(Settings):
    """Settings of a managed node."""

    autostart: bool = setting(True, 'whether the node configures and activates itself; if not, '
                                    '`ros2 lifecycle set` or a lifecycle manager does')


class ManagedNode(LifecycleNodeMixin, Node):
    """A node whose life cycle a lifecycle manager can drive.

    A subclass overrides `configure`, `activate`, `deactivate`, `cleanup` and `shutdown`. If
    one of them raises an error that is the user's fault, the transition fails and the node
    keeps its state. After any other error the node releases everything and is unconfigured.
    With ``autostart`` the constructor configures and activates the node, and raises any
    error.

    ``packages``: packages whose errors are the user's fault, see `process.run`. ``held``:
    stack of functions that release what `configure` has made. Topics, services and timers
    are not on the stack, because they are released automatically. ``configured``,
    ``active``: state of the node. ``done``: whether the process is allowed to end. If so,
    it ends at the time ``stays_until`` (monotonic seconds), or earlier on a signal.
    """

    packages: ClassVar[Collection[str]] = ()

    def __init__(self, name: str, model: type[ManagedSettings], **options: Any) -> None:
        Node.__init__(self, name, **options)
        bound_parameters(self)
        self._model = model
        self.held = ExitStack()
        self.configured = self.active = self.done = False
        self.stays_until = 0.0
        self._begins = declare_early(self, model, 'autostart')['autostart']
        self._failure: Exception | None = None
        LifecycleNodeMixin.__init__(
            self, enable_communication_interface=not self._begins or self.is_drivable())
        self._refuse_wrong_transitions()
        if self._begins:
            self._bring_up()

    def is_drivable(self) -> bool:
        """Return whether anyone may change the state of a node that has started itself.

        Such a change is a control call that does not prove its sender. So the node refuses it if it
        has a key, or if it takes no control calls (`security.control`).
        """
        found = declare_early(self, self._model, 'security.key', 'security.control')
        return not key_file(found.get('security.key', '')) and found.get('security.control', True)

    # -- methods that a subclass overrides ---

    def configure(self) -> None:
        """Make everything that the node needs, but do not start to work yet."""

    def activate(self) -> None:
        """Begin to work, or continue after a pause."""

    def deactivate(self) -> None:
        """Pause the work in an orderly way."""

    def cleanup(self) -> None:
        """Prepare the release of everything that `configure` has made.

        If this method raises an error that is the user's fault, the node releases nothing.
        """

    def shutdown(self) -> None:
        """End the work in an orderly way; set ``done`` when the process may end."""
        self.done = True

    # -- transitions ---

    def _bring_up(self) -> None:
        for transition in (self.trigger_configure, self.trigger_activate):
            if transition() != SUCCESS:
                self.destroy_node()
                raise self._failure or RuntimeError('the node does not start')
        self._begins = False

    def _refuse_wrong_transitions(self) -> None:
        """Make the node refuse a transition that has no valid name or is not allowed now.

        Otherwise rclpy would raise an error that ends the node, or write the name from the request
        into the log unchecked.
        """
        for service in self.services:
            if service.srv_name.endswith('/change_state'):
                service.callback = self._guarded(service.callback)

    def _guarded(self, change: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def guarded(request: Any, response: Any) -> Any:
            try:
                if not is_name(request.transition.label):
                    raise RuntimeError('its label is no name')
                return change(request, response)
            except RuntimeError as error:  # rclpy's RCLError, which has no public name
                self.get_logger().warning(f'refused a transition: {error}')
                response.success = False
                return response
        return guarded

    def _carry_out(self, what: str, *work: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            for step in work:
                step()
            return SUCCESS
        except Exception as error:
            users, self._failure = is_users(error, self.packages), error
            if not self._begins:  # while it begins, `_bring_up` raises the error
                self.get_logger().error(f'{what} failed: {error}' if users else
                                        f'{what} failed: {traceback.format_exc()}')
            return FAILURE if users else ERROR

    def on_configure(self, state: Any) -> TransitionCallbackReturn:
        """Call `configure`; release everything if it fails."""
        self.held.callback(self._destroy_all_but, self._entities())
        result = self._carry_out('configure', self.configure)
        self.configured = result == SUCCESS
        return result if self.configured else self._released(result)

    def on_activate(self, state: Any) -> TransitionCallbackReturn:
        """Call `activate`; the node is active unless `activate` fails."""
        self.active = True
        result = self._carry_out('activate', self.activate)
        self.active = result == SUCCESS
        return result

    def on_deactivate(self, state: Any) -> TransitionCallbackReturn:
        """Call `deactivate`; the node stays active if `deactivate` fails by the user's fault."""
        self.active = False
        result = self._carry_out('deactivate', self.deactivate)
        self.active = result == FAILURE
        return result

    def on_cleanup(self, state: Any) -> TransitionCallbackReturn:
        """Call `cleanup`; release everything if it succeeds."""
        result = self._carry_out('cleanup', self.cleanup)
        return self._released() if result == SUCCESS else result

    def on_shutdown(self, state: Any) -> TransitionCallbackReturn:
        """Call `shutdown`.

        If the node was not configured, it still answers state queries for `STAYS` seconds.
        """
        if not self.configured:
            self.stays_until = time.monotonic() + STAYS
        return self._carry_out('shutdown', self.shutdown)

    def on_error(self, state: Any) -> TransitionCallbackReturn:
        """Release everything; the node can be configured again."""
        return self._released()

    # -- release ---

    def _released(self, result: TransitionCallbackReturn = SUCCESS) -> TransitionCallbackReturn:
        """Release what `configure` made; return `result`, or ERROR if the release fails."""
        self.configured = self.active = False
        released = self._carry_out('cleanup', self.held.close)
        return result if released == SUCCESS else ERROR

    def _entities(self) -> dict[str, set[Any]]:
        return {kind: set(getattr(self, kinds)) for kind, kinds in _KINDS.items()}

    def _destroy_all_but(self, former: dict[str, set[Any]]) -> None:
        for kind, now in self._entities().items():
            for entity in now - former[kind]:
                getattr(self, f'destroy_{kind}')(entity)

    def destroy_node(self) -> None:
        """Release everything, then destroy the node."""
        self.held.close()
        super().destroy_node()
