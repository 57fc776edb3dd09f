"""What takes part in the transitions of a managed node."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from rclpy.lifecycle._machine import LifecycleState, TransitionCallbackReturn


class ManagedEntity:
    """Has a callback for each transition; these say that all went well."""

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Configure; ``state``: the one before, as in all callbacks."""
        return TransitionCallbackReturn.SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free what `on_configure` has made."""
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End."""
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begin to work."""
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop working."""
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything, so that the node can be configured again."""
        return TransitionCallbackReturn.SUCCESS


class SimpleManagedEntity(ManagedEntity):
    """Knows whether it is active."""

    def __init__(self) -> None:
        self._enabled = False

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Be active."""
        self._enabled = True
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Be inactive."""
        self._enabled = False
        return TransitionCallbackReturn.SUCCESS

    @property
    def is_activated(self) -> bool:
        """Whether it is active."""
        return self._enabled

    @staticmethod
    def when_enabled(
        wrapped: Callable[..., Any] | None = None,
        *,
        when_not_enabled: Callable[[], Any] | None = None,
    ) -> Callable[..., Any]:
        """Decorate a method that does nothing, or ``when_not_enabled``, while it is inactive."""

        def decorator(method: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(method)
            def guarded(self: SimpleManagedEntity, *args: Any, **kwargs: Any) -> None:
                if self._enabled:
                    method(self, *args, **kwargs)
                elif when_not_enabled is not None:
                    when_not_enabled()

            return guarded

        return decorator if wrapped is None else decorator(wrapped)
