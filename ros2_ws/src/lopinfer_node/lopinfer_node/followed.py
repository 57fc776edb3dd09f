"""Share a model that a fleet improves: versions are taken up between two inferences.

The robot and its servers change together. A version is first traced and given to the servers beside
the present one, which goes on; when a server is ready for it, the next inference uses it.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from fleet_models.errors import FollowError
from fleet_models.following import Follower, Ready, with_state
from fleet_ros.ending import CLEANUP

from .runtime.client import Report

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from fleet_models.following import Prepare

    from .api import OffloadedModel

# Seconds in which a server must be ready for a version while the present one is shared. A slow link
# needs them for what the server lacks.
PATIENCE = 600.0
LOST = 10.0          # seconds without a server for the present one, after which nobody waits for it
LOOK = 0.05          # seconds between two looks


class FollowedModel:
    """An `OffloadedModel` that changes with the versions of a fleet; it is called in the same way.

    :param open: returns an `OffloadedModel` of a model.
    :param follower: returns the `Follower` for a `Prepare`.
    """

    def __init__(self, model: torch.nn.Module, open: Callable[[torch.nn.Module], OffloadedModel],
                 follower: Callable[[Prepare], Follower]) -> None:
        self.model = model      # the present one; each version has an object of its own
        self._open, self._present = open, open(model)
        self._changing = threading.Lock()
        self._opened: list[OffloadedModel] = [self._present]
        self._closed = False
        self.follower = follower(self._prepared)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Take up a version if one is ready; then run one inference, shared if possible."""
        self.take()
        return self._present(*args, **kwargs)

    def current(self) -> torch.nn.Module:
        """Take up a version if one is ready; return the present model."""
        self.take()
        return self.model

    @property
    def shared(self) -> bool:
        """Return whether a server is ready."""
        return self._present.shared

    @property
    def reason(self) -> str:
        """Return why inferences are not shared; see `OffloadedModel.reason`."""
        return self._present.reason

    @property
    def report(self) -> Report | None:
        """Return counters since the present version was taken up, and the last times."""
        return self._present.report

    def connect(self, *args: Any, **kwargs: Any) -> None:
        """Trace the model with these example inputs; see `OffloadedModel.connect`."""
        self._present.connect(*args, **kwargs)

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` until a server is ready; return whether it is ready."""
        return self._present.wait(seconds)

    def close(self) -> None:
        """Follow no longer, and disconnect from the servers."""
        with self._changing:
            self._closed = True     # `_prepared` ends
        self.follower.close(CLEANUP)
        with self._changing:
            opened, self._opened = self._opened, []
        for one in opened:
            one.close()

    def take(self) -> None:
        """Take up a version if one is ready; each call of the model does so first."""
        if self.follower.ready is None:
            return
        with self._changing:
            ready: Ready | None = self.follower.ready
            if ready is None or self._closed:
                return
            former = self._present
            self.model, self._present = ready.prepared
            self._opened = [self._present]
            self.follower.taken(ready)
        # in a thread, because it takes a while
        threading.Thread(target=former.close, name='close', daemon=True).start()

    def _prepared(self, state: dict[str, torch.Tensor]) -> tuple[torch.nn.Module, OffloadedModel]:
        """Return the model with new tensors, for which a server is ready if it is for the present.

        Raises FollowError if that takes longer than `PATIENCE`.
        """
        with self._changing:
            model, present = self.model, self._present
            waiting = [one for one in self._opened if one is not present]
        for one in waiting:     # prepared, but a newer version is there before it was used
            one.close()
        model = with_state(model, state)
        new = self._open(model)
        with self._changing:
            closed = self._closed
            if not closed:
                self._opened = [present, new]
        if closed:
            new.close()
            raise FollowError('closed')
        if (example := present.example) is not None:
            new.connect(*example[0], **example[1])
        began = time.monotonic()
        heard = began if present.shared else -math.inf   # when a server was there for the present
        while not new.shared and not self._closed:
            now = time.monotonic()
            heard = now if present.shared else heard
            if now - heard > LOST:
                break
            if now - began > PATIENCE:
                new.close()
                raise FollowError(f'no server was ready for it within {PATIENCE:g} s: '
                                  f'{new.reason or "its upload takes longer"}')
            time.sleep(LOOK)
        return model, new
