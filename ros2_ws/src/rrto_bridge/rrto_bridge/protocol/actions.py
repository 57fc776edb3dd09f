"""Actions that the replaying client sends to the server, and `Value`, the server's answer.

A pass is one execution of a sequence by the program. A run is the replay of one pass by
the server, which is possibly ahead of the program. `Abandon` undoes the effects of the
run; `Finish` makes these effects permanent. At most one run is open at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .record import Meta
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Define:
    """Register `sequence` on the server under its number; `Forget` removes it."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the sequence `number` from the server."""

    number: int


@dataclass(frozen=True, slots=True)
class Start:
    """Begin run `run` of sequence `number`; slot s of the sequence gets handle `base` + s.

    `inputs`: bytes of the host-to-device copies that the program has made so far in the pass.
    `bound`: handles of the `Bound` tensors that the program has used so far in the pass. `More`
    adds the later inputs and handles. The server executes all steps for which it has the data.
    """

    run: int
    number: int
    base: int
    inputs: tuple[Any, ...]
    bound: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class More:
    """Add the next `inputs` and `bound` handles to the open run; see `Start`."""

    run: int
    inputs: tuple[Any, ...]
    bound: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """Undo the open run `run`, and run the sequence `number` from its beginning instead.

    The inputs and bound handles received so far stay valid, because both sequences are equal up to
    the present step. The new run gets the number `new`, so that the client does not mistake values
    of the undone run for values of the new run.
    """

    run: int
    new: int
    number: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Undo the run, execute its first `count` steps again, and end the run.

    `alive`: handles of the tensors to keep. `failed`: whether the client ends the run because of an
    error in the run; if so, the server does not report this error again.
    """

    run: int
    count: int
    alive: tuple[int, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run after a complete pass.

    Keep the effects of the run, and the tensors with the handles `alive`.
    """

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
    """The server's result of one wanted step: a step whose value the program needs at once.

    `index`: number of the step among the wanted steps of the run, from 0. `metas`: metas of the
    returned tensors, if a shape depends on data. If these metas differ from the metas in the
    sequence, the server stops after this step and waits for `Abandon`. `error`: why there is no
    value: the error of this step, of an earlier step of the run, or of an earlier call; empty if
    there is none.
    """

    run: int
    index: int
    value: Any = None
    metas: tuple[Meta | None, ...] = ()
    error: str = ''


Action = Define | Forget | Start | More | Switch | Abandon | Finish | Free | Notice
