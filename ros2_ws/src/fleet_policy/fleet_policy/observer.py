"""The newest messages of all sources, and the batch of tensors made of these messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from fleet_env.errors import PictureError
from fleet_env.pictures import decode, from_message

from .contract import Contract, Observation
from .errors import DataFault
from .messages import MessageError, numbers

Batch = dict[str, torch.Tensor]


class Observer:
    """Stores the newest message of each entry of the contract.

    An image becomes a tensor only in `batch_of`. All times are in seconds of one clock.
    ``observed``: the earliest of the arrival times of these messages. Only entries whose ``limit``
    is above 0 count. If all limits are 0, ``observed`` is the latest arrival time. As long as an
    entry has no message, ``observed`` is -infinity.
    """

    def __init__(self, contract: Contract, start: float, first: float = 10.0) -> None:
        self._contract = contract
        # Time at which the observer begins, and time in seconds within which each entry must get
        # its first message.
        self._start, self._first = start, first
        self._newest: dict[str, tuple[Any, float]] = {}

    def take(self, name: str, message: Any, now: float) -> None:
        """Store the message of an entry.

        :raises DataFault: the message does not fit the contract; then the previous message is kept.
        """
        entry = self._contract.observations[name]
        try:
            value = message if entry.is_image else vector(entry, message)
            if entry.is_image:
                from_message(message, entry.topic)
        except MessageError as error:
            raise DataFault(f'observations.{name}: a message on {entry.topic} {error}',
                            name) from None
        except PictureError as error:
            raise DataFault(f'observations.{name}: {error}', name) from None
        self._newest[name] = value, now

    @property
    def observed(self) -> float:
        """Return the time of the observation in seconds; see `Observer`."""
        if len(self._newest) < len(self._contract.observations):
            return -math.inf
        times = [at for name, (_, at) in self._newest.items()
                 if self._contract.observations[name].limit]
        return min(times, default=max(at for _, at in self._newest.values()))

    def flaws(self, now: float) -> dict[str, str]:
        """Return for each entry what is wrong with its topic now; '' if nothing is wrong."""
        return {name: self._flaw(name, entry, now)
                for name, entry in self._contract.observations.items()}

    def _flaw(self, name: str, entry: Observation, now: float) -> str:
        if name not in self._newest:
            waited = now - self._start
            return '' if waited <= self._first else (
                f'observations.{name}: no message on {entry.topic} ({entry.type}) for '
                f'{self._first:g} s since the start: is it published, in this namespace?')
        silent = now - self._newest[name][1]
        if not entry.limit or silent <= entry.limit:
            return ''
        return (f'observations.{name}: {entry.topic} has stopped, no message for more than '
                f'{entry.limit:g} s')

    def newest(self) -> dict[str, Any]:
        """Return the newest value of each entry, for `batch_of` in another thread."""
        return {name: value for name, (value, _) in self._newest.items()}


def batch_of(contract: Contract, values: dict[str, Any]) -> Batch:
    """Return the tensor of each entry.

    An image is uint8 (1, 3, height, width). A list of n numbers is float32 (1, n).

    :raises DataFault: an image cannot be decoded.
    """
    return {name: image(name, entry, values[name]) if entry.is_image
            else torch.from_numpy(values[name].copy())[None]
            for name, entry in contract.observations.items()}


def vector(entry: Observation, message: Any) -> np.ndarray:
    """Return the numbers of a message in the policy's unit, float32 (n,).

    :raises MessageError: the message does not fit the entry.
    """
    values = numbers(message, entry.field, entry.fields, entry.names, entry.count)
    return values * np.float32(entry.factor)


def image(name: str, entry: Observation, message: Any) -> torch.Tensor:
    """Return a message's pixels, uint8 (1, 3, height, width), scaled to the size in ``entry``."""
    try:
        pixels = decode(from_message(message, entry.topic), (entry.height, entry.width), 3)
    except PictureError as error:
        raise DataFault(f'observations.{name}: {error}', name) from None
    found = torch.from_numpy(pixels)[None]
    return found.flip(1) if entry.encoding == 'bgr8' else found


def blank(contract: Contract) -> Batch:
    """Return a batch of zeros with the shapes and types of the contract."""
    return {name: torch.zeros(entry.shape, dtype=torch.uint8 if entry.is_image else torch.float32)
            for name, entry in contract.observations.items()}
