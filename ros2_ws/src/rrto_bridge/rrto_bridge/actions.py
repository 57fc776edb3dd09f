"""What the replaying client asks for, in this order, and what the server answers.

A run is one pass of a sequence. The server may run ahead of the program: everything it does is
undone by `Abandon` unless `Finish` came. At most one run is open at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .record import Meta
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Define:
    """The server shall know `sequence` by its number from now on, until `Forget`."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Forget:
    """The server may drop the sequence of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Start:
    """Begin run `run`: slot s of the sequence gets handle `base` + s.

    `inputs`: bytes of the first host-to-device copies of the pass; `bound`: handles of its first
    `Bound` tensors. The rest follows in `More`; the server runs as far as it can.
    """

    run: int
    number: int
    base: int
    inputs: tuple[Any, ...]
    bound: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class More:
    """The next inputs and bound tensors of the open run."""

    run: int
    inputs: tuple[Any, ...]
    bound: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """The open run turns out to be one of another sequence: undo it, run that one instead.

    Inputs and bound tensors that have come stay valid: both sequences agree so far. The run is
    called `new` from now on, so that values of the former are not mistaken for its own.
    """

    run: int
    new: int
    number: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Undo the open run, run its first `count` steps again and keep these handles; it is over."""

    run: int
    count: int
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The program made the whole pass: what it did stays. Keep these handles; the run is over."""

    run: int
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Free:
    """The program holds these tensors no longer."""

    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should be told, once."""

    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """From the server: what the `index`-th wanted step of the run gave.

    `metas`: of the tensors it returned, where their shape depends on data; where they are not
    those of the step the server waits there for `Abandon`. `error`: the run stopped before it.
    """

    run: int
    index: int
    value: Any = None
    metas: tuple[Meta | None, ...] = ()
    error: str = ''


Action = Define | Forget | Start | More | Switch | Abandon | Finish | Free | Notice
