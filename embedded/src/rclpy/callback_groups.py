"""Callback groups: which callbacks may run at the same time."""

from __future__ import annotations

import threading
import weakref
from typing import Any


class CallbackGroup:
    """Base of the groups; an executor asks before it runs a callback."""

    def __init__(self) -> None:
        self.entities: weakref.WeakSet[Any] = weakref.WeakSet()

    def add_entity(self, entity: Any) -> None:
        """Add a subscription, timer, service, client or guard condition."""
        self.entities.add(entity)

    def has_entity(self, entity: Any) -> bool:
        """Whether the entity belongs to the group."""
        return entity in self.entities

    def can_execute(self, entity: Any) -> bool:
        """Whether the entity's callback may run now."""
        raise NotImplementedError

    def beginning_execution(self, entity: Any) -> bool:
        """Note that the callback runs; False when it must not."""
        raise NotImplementedError

    def ending_execution(self, entity: Any) -> None:
        """Note that the callback has ended."""
        raise NotImplementedError


class ReentrantCallbackGroup(CallbackGroup):
    """Callbacks run at any time, also several of one entity."""

    def can_execute(self, entity: Any) -> bool:
        """Return True."""
        return True

    def beginning_execution(self, entity: Any) -> bool:
        """Return True."""
        return True

    def ending_execution(self, entity: Any) -> None:
        """Do nothing."""


class MutuallyExclusiveCallbackGroup(CallbackGroup):
    """One callback of the group at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._active: Any = None
        self._lock = threading.Lock()

    def can_execute(self, entity: Any) -> bool:
        """Whether no callback of the group runs."""
        return self._active is None

    def beginning_execution(self, entity: Any) -> bool:
        """Note that the callback runs; False when another one does."""
        with self._lock:
            if self._active is None:
                self._active = entity
                return True
            return False

    def ending_execution(self, entity: Any) -> None:
        """Note that the callback has ended."""
        with self._lock:
            if self._active is entity:
                self._active = None
