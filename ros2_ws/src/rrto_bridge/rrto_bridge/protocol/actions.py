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
    """Drop the sequence with this number on the server."""

    number: int


@dataclass(frozen=True, slots=True)
class Start:
    """Begin run `run`; slot s of the sequence gets handle `base` + s.

    `inputs`: bytes of the first host-to-device copies of the pass. `bound`: handles of the first
    `Bound` tensors of the pass. `More` brings the rest. The server runs all steps for which it has
    the data.
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
    """Undo the run, run its first `count` steps again, keep the handles `alive`, and end it."""

    run: int
    count: int
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run after a complete pass; keep the effects of the run and the handles `alive`."""

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
    """The server's result of the `index`-th wanted step of a run.

    `metas`: metas of the returned tensors, if a shape depends on data. If these metas differ from
    the metas in the sequence, the server stops after this step and waits for `Abandon`. `error`:
    why the run stopped before this step; empty if the step succeeded.
    """

    run: int
    index: int
    value: Any = None
    metas: tuple[Meta | None, ...] = ()
    error: str = ''


Action = Define | Forget | Start | More | Switch | Abandon | Finish | Free | Notice
