"""The newest messages of all sources, and the batch of tensors made of these messages."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from fleet_compute.pictures import decoded, picture_of, typical
from fleet_env.errors import PictureError
from fleet_env.pictures import from_message

from .contract import Contract, Observation
from .errors import DataFault
from .messages import MessageError, by_name, joints_of, numbers

Batch = dict[str, torch.Tensor]
KNOWN = 20   # number of joints of a topic that an error names


class _Part:
    """What an entry needs from its topic: a whole message, or one joint of it.

    ``value``: the newest; None if there is none. ``taken``: its time. ``heard``: times of the
    newest messages, also of bad ones. ``fault``: what is wrong with the newest message; '' if
    nothing is wrong.
    """

    def __init__(self) -> None:
        self.value: Any = None
        self.taken = -math.inf
        self.heard: deque[float] = deque(maxlen=3)
        self.fault = ''

    def is_late(self, limit: float, now: float) -> bool:
        """Return whether the newest message is too old, or came too late after the one before.

        So a topic that stopped is back after two messages within ``limit``, and a topic that is
        slower than ``limit`` stays late.
        """
        return bool(limit) and (now - self.heard[-1] > limit or len(self.heard) > 1
                                and self.heard[-1] - self.heard[-2] > limit)

    def slow(self, limit: float, now: float) -> float:
        """Return the usual time between two messages if it exceeds ``limit``, otherwise 0."""
        gaps = np.diff(self.heard)
        is_slow = limit and len(gaps) == 2 and gaps.min() > limit \
            and now - self.heard[-1] <= 2 * gaps.max()
        return float(gaps.mean()) if is_slow else 0.0


class Observer:
    """Stores the newest message of each entry of the contract, and of joints the newest numbers.

    The joints of an entry may come in several messages. An image becomes a tensor only in
    `batch_of`. All times are in seconds of one clock. ``observed``: the earliest of the arrival
    times of what is stored. Only entries whose ``limit`` is above 0 count. If all limits are 0,
    ``observed`` is the latest arrival time. As long as something is missing, ``observed`` is
    -infinity.
    """

    def __init__(self, contract: Contract, start: float, first: float = 10.0) -> None:
        self._contract = contract
        # Time at which the observer begins, and time in seconds within which each entry must get
        # its first message.
        self._start, self._first = start, first
        self._parts = {name: {part: _Part() for part in entry.names or ('',)}
                       for name, entry in contract.observations.items()}
        # Maps an entry to the names of joints that its topic has.
        self._joints: dict[str, dict[str, None]] = {name: {} for name in contract.observations}
        self._undecodable: set[str] = set()   # entries whose last image could not be decoded

    def take(self, name: str, message: Any, now: float) -> None:
        """Store the message of an entry.

        :raises DataFault: the message does not fit the contract. Then what was stored is kept, and
            `flaws` says so until a message fits.
        """
        entry, parts = self._contract.observations[name], self._parts[name]
        try:
            found = self._read(name, entry, message)
        except (MessageError, PictureError, DataFault) as error:
            text = str(error) if isinstance(error, DataFault) else f'observations.{name}: ' + (
                str(error) if entry.is_image else f'a message on {entry.topic} {error}')
            for part in set(joints_of(message)) & set(parts) if entry.names else parts:
                parts[part].fault = text
                parts[part].heard.append(now)
            raise DataFault(text, name) from None
        for part, value in found.items():
            parts[part].value, parts[part].taken, parts[part].fault = value, now, ''
            parts[part].heard.append(now)

    def _read(self, name: str, entry: Observation, message: Any) -> dict[str, Any]:
        if entry.is_image:
            from_message(message, entry.topic)
            if name in self._undecodable:   # only an image that can be decoded ends such a fault
                if flaw := flaw_of({name: image(name, entry, message)}):
                    raise flaw
                self._undecodable.discard(name)
            return {'': message}
        factor = np.float32(entry.factor)
        if not entry.names:
            return {'': factor * numbers(message, entry.field, entry.fields, entry.count)}
        known = self._joints[name]
        known |= dict.fromkeys(joints_of(message)[:KNOWN - len(known)])
        return {joint: factor * value for joint, value in
                by_name(message, entry.field, entry.names).items()}

    def refuse(self, flaw: DataFault) -> None:
        """Record that an image of an entry could not be decoded, until the next one can be."""
        part = self._parts[flaw.entry]['']
        if part.heard:   # otherwise the image is one of before this observer
            self._undecodable.add(flaw.entry)
            part.fault = str(flaw)

    @property
    def observed(self) -> float:
        """Return the time of the observation in seconds; see `Observer`."""
        times = {name: min(part.taken for part in parts.values())
                 for name, parts in self._parts.items()}
        if min(times.values()) == -math.inf:
            return -math.inf
        return min((at for name, at in times.items() if self._contract.observations[name].limit),
                   default=max(times.values()))

    def flaws(self, now: float) -> dict[str, str]:
        """Return for each entry what is wrong with its topic now; '' if nothing is wrong."""
        return {name: self._flaw(name, entry, now)
                for name, entry in self._contract.observations.items()}

    def _flaw(self, name: str, entry: Observation, now: float) -> str:
        parts, limit = self._parts[name], entry.limit
        late = {joint: part for joint, part in parts.items()
                if part.heard and part.is_late(limit, now)}
        faults = [part for joint, part in parts.items() if part.fault and joint not in late]
        if faults:
            return max(faults, key=lambda part: part.heard[-1]).fault
        if late:
            which = '' if len(late) == len(parts) else f' {_quoted(late)}'
            slow = max(part.slow(limit, now) for part in late.values())
            where = f'observations.{name}: {entry.topic}{which and f" with{which}"}'
            return (f'{where} comes every {slow:.2f} s ({1 / slow:.2g} Hz), and its limit is '
                    f'{limit:g} s: raise limit, or publish faster' if slow else
                    f'{where} has stopped, no message for more than {limit:g} s')
        missing = self._missing(name, entry)
        return missing and now - self._start > self._first and (
            f'{missing} for {self._first:g} s since the start: is it published, in this '
            'namespace?') or ''

    def _missing(self, name: str, entry: Observation) -> str:
        missing = [joint for joint, part in self._parts[name].items() if part.value is None]
        if not missing:
            return ''
        where, there = f'observations.{name}: no message on {entry.topic}', self._joints[name]
        if not there:
            return f'{where} ({entry.type})'
        has = ', '.join(there) + (', ...' if len(there) == KNOWN else '')
        return f'{where} has {entry.field} of {_quoted(missing)} (its joints are {has})'

    @property
    def missing(self) -> str:
        """Return which entries or joints have had no value so far; '' if all have one."""
        return '; '.join(filter(None, (self._missing(name, entry) for name, entry
                                       in self._contract.observations.items())))

    def newest(self) -> dict[str, Any]:
        """Return the newest value of each entry, for `batch_of` in another thread."""
        return {name: np.array([part.value for part in parts.values()], np.float32)
                if self._contract.observations[name].names else parts[''].value
                for name, parts in self._parts.items()}


def _quoted(joints: Iterable[str]) -> str:
    named = list(joints)
    return f'joint{"s" * (len(named) > 1)} {", ".join(map(repr, named))}'


def batch_of(contract: Contract, values: dict[str, Any]) -> Batch:
    """Return the tensor of each entry.

    An image is uint8 (1, 3, height, width). A list of n numbers is float32 (1, n).

    :raises DataFault: an image cannot be decoded. A JPEG or PNG that is damaged within may raise
        PictureError when its elements are used; then `flaw_of` says which.
    """
    return {name: image(name, entry, values[name]) if entry.is_image
            else torch.from_numpy(values[name].copy())[None]
            for name, entry in contract.observations.items()}


def image(name: str, entry: Observation, message: Any) -> torch.Tensor:
    """Return a message's pixels, uint8 (1, 3, height, width), scaled to the size in ``entry``."""
    try:
        return picture_of(from_message(message, entry.topic), (entry.height, entry.width),
                          reverse=entry.encoding == 'bgr8')
    except PictureError as error:
        raise DataFault(f'observations.{name}: {error}', name) from None


def flaw_of(batch: Batch) -> DataFault | None:
    """Return what is wrong with an image of a batch; None if all can be decoded."""
    name = ''
    try:
        for name, value in batch.items():  # noqa: B007  # the one that raises
            decoded(value)
    except PictureError as error:
        return DataFault(f'observations.{name}: {error}', name)
    return None


def usual(contract: Contract) -> Batch:
    """Return a batch with the shapes and types of the contract: usual pictures, and zeros."""
    return {name: typical(entry.height, entry.width, entry.type.endswith('CompressedImage'))
            if entry.is_image else torch.zeros(entry.shape)
            for name, entry in contract.observations.items()}
