"""Actions of the replaying client, in the order in which it issues them, and the server's answers.

A run is the replay of one pass of a sequence. The server may run ahead of the program. `Abandon`
undoes everything that the run did; `Finish` makes it permanent. At most one run is open at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .record import Meta
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Define:
    """Register `sequence` on the server under its number, until `Forget`."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the sequence of this number on the server."""

    number: int


@dataclass(frozen=True, slots=True)
class Start:
    """Begin run `run`; slot s of the sequence gets handle `base` + s.

    `inputs`: bytes of the first host-to-device copies of the pass. `bound`: handles of its first
    `Bound` tensors. `More` brings the rest; the server runs as far as it can.
    """

    run: int
    number: int
    base: int
    inputs: tuple[Any, ...]
    bound: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class More:
    """Add the next inputs and bound tensors to the open run."""

    run: int
    inputs: tuple[Any, ...]
    bound: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """Undo the open run and run another sequence, numbered `number`, instead.

    Inputs and bound tensors received so far stay valid, because both sequences agree up to here.
    The run is renamed to `new`, so that its values cannot be mistaken for those of the undone run.
    """

    run: int
    new: int
    number: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Undo and end the open run; run its first `count` steps again; keep the handles `alive`."""

    run: int
    count: int
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run after a complete pass: keep its effects and the handles `alive`."""

    run: int
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Free:
    """Free tensors that the program no longer references."""

    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to print once for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """The server's result of the run's `index`-th wanted step.

    `metas`: of the returned tensors, if their shape depends on data. If they differ from those of
    the step, the server stops there and waits for `Abandon`. `error`: the run stopped before this
    step.
    """

    run: int
    index: int
    value: Any = None
    metas: tuple[Meta | None, ...] = ()
    error: str = ''


Action = Define | Forget | Start | More | Switch | Abandon | Finish | Free | Notice
