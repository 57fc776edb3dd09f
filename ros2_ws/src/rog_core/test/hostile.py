"""Makes messages that the protocol forbids; computes fingerprints of state that must not change.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

import numpy as np
from fleet_link.estimate import Rate, RoundTrip
from rog_core.methods import Method
from rog_core.patience import Patience
from rog_core.protocol.messages import Ack, Chunk, End, Kind
from rog_core.protocol.steps import MAX_LOCAL, MAX_SHARDS, Local, Phase, Shards
from rog_core.server.aggregation import Aggregation
from rog_core.server.full_gradient import FullGradient
from rog_core.server.member import Member
from rog_core.server.mirror import Mirror
from rog_core.server.server import Server
from rog_core.transfer.link import RowLink
from rog_core.transfer.receiver import Receiver
from rog_core.transfer.sender import RawRows, Sender
from rog_core.worker.accumulator import Accumulator
from rog_core.worker.worker import Worker, WorkerStatistics


def _scale(chunk, bits):
    values = chunk.values.copy()
    if chunk.codec == 0:  # codec raw; the value is a float32
        values[2:4] = bits & 255, bits >> 8
    else:
        values[:2] = bits & 255, bits >> 8
    return replace(chunk, values=values)


BAD_STEPS = {
    'no shards': Shards(0, (0,), (1.0,)),
    'too many shards': Shards(MAX_SHARDS + 1, (0,), (1.0,)),
    'a shard too high': Shards(4, (1, 4), (1.0, 1.0)),
    'a shard below 0': Shards(4, (-1,), (1.0,)),
    'a weight that is NaN': Shards(4, (1, 2), (1.0, math.nan)),
    'an infinite weight': Shards(4, (1,), (math.inf,)),
    'more shards than weights': Shards(4, (1, 2), (1.0,)),
    'more weights than shards': Shards(4, (1,), (1.0, 2.0)),
    'nothing to do': Shards(4, (), ()),
    'a shard twice': Shards(4, (1, 2, 1), (1.0, 1.0, 1.0)),
    'no local steps': Local(0),
    'local steps below 0': Local(-3),
    'too many local steps': Local(MAX_LOCAL + 1),
    'a phase without steps': Phase(0),
    'a phase with too many steps': Phase(MAX_LOCAL + 1),
    'no fragments': Phase(3, 0, 0),
    'a fragment too high': Phase(3, 2, 2),
    'a fragment below 0': Phase(3, 2, -1),
    'too many fragments': Phase(3, MAX_LOCAL + 1, 0),
}

# Invalid values of a command's fields other than ``step`` and ``sending``, as arguments of
# `dataclasses.replace`.
BAD_WORDS = {
    'no iteration': {'next_iteration': 0}, 'an iteration below 0': {'next_iteration': -1},
    'an MTA time that is NaN': {'mta_time': math.nan}, 'an MTA time below 0': {'mta_time': -1.0},
    'a patience that is NaN': {'patience': math.nan}, 'a patience below 0': {'patience': -0.5},
}
BAD_SENDINGS = {
    'a minimum that is NaN': {'minimum': math.nan}, 'a minimum below 0': {'minimum': -0.1},
    'a minimum above 1': {'minimum': 1.1}, 'a threshold below 0': {'threshold': -1},
    'an MTA that is NaN': {'mta': math.nan}, 'an MTA above 1': {'mta': 2.0},
    'an MTA below 0': {'mta': -0.5},
}


def bad_commands(command):
    """Return a dict of copies of a valid command, each copy with one invalid field."""
    return {**{name: replace(command, step=step) for name, step in BAD_STEPS.items()},
            **{name: replace(command, **word) for name, word in BAD_WORDS.items()},
            **{name: replace(command, sending=replace(command.sending, **change))
               for name, change in BAD_SENDINGS.items()}}


def _chunk_faults(chunk):
    last = np.array([255, 255, 255, 255, 7], np.uint8)
    ids, values = chunk.ids, chunk.values
    return [
        replace(chunk, codec=1 - chunk.codec),
        replace(chunk, codec=77),
        replace(chunk, sequence=-1),
        replace(chunk, sequence=1 << 30),
        replace(chunk, segments=chunk.segments + 1),
        replace(chunk, segments=0),
        replace(chunk, ids=ids[:-1]),
        replace(chunk, ids=np.append(ids, np.uint8(1))),
        # In the first of these two faults, an id is out of range. In the second fault, the ids do
        # not ascend.
        replace(chunk, ids=np.concatenate([ids, last]), segments=chunk.segments + 1),
        replace(chunk, ids=np.append(ids, np.uint8(0)), segments=chunk.segments + 1),
        replace(chunk, values=values[:-1]),
        replace(chunk, values=np.append(values, np.uint8(0))),
        replace(chunk, values=values[:0]),
        _scale(chunk, 0x7fc0), _scale(chunk, 0x7f80), _scale(chunk, 0xff80),
    ]


def _end_faults(end):
    faults = [replace(end, chunks=-1), replace(end, chunks=1 << 30)]
    if end.transfer.kind == Kind.PUSH:
        return faults + [replace(end, mta_duration=bad) for bad in (math.nan, math.inf, -1.0)]
    if end.transfer.kind in (Kind.PULL, Kind.ANCHOR) and end.command.next_iteration:
        faults += [replace(end, command=bad) for bad in bad_commands(end.command).values()]
    return faults


def twin(message):
    """Return the valid message from which `corrupted` makes an invalid one."""
    # Use the number of a chunk that has not arrived, because the receiver acknowledges a duplicate
    # without reading it.
    return replace(message, sequence=message.sequence + 60) if isinstance(message, Chunk) \
        else message


def corrupted(rng, message):
    """Return a copy of the message that breaks a rule of its type; ``rng`` chooses the rule."""
    message = twin(message)
    if isinstance(message, Chunk):
        faults = _chunk_faults(message)
    elif isinstance(message, End):
        faults = _end_faults(message)
    elif isinstance(message, Ack):
        return replace(message, packet=1 << 30) if rng.random() < 0.5 \
            else replace(message, arrived=math.nan)
    else:
        faults = [replace(message, chunks=message.chunks + 1),
                  replace(message, taken=message.taken + b'\0')]
    kind = Kind.PULL if message.transfer.kind == Kind.PUSH else Kind.PUSH
    if isinstance(message, (Chunk, End)) and message.transfer.kind != Kind.ANCHOR:
        faults.append(replace(message, transfer=replace(message.transfer, kind=kind)))
    return rng.choice(faults)


# Types of the objects inside a state machine. Attributes of other types are numbers, arrays,
# containers or constants.
_PARTS = (Worker, Server, Member, Accumulator, Aggregation, Method, FullGradient,
          Mirror, Patience, RawRows, Sender, Receiver, RowLink, RoundTrip, Rate, WorkerStatistics)


def _contents(value):
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return tuple((key, _contents(held)) for key, held in value.items())
    if isinstance(value, (list, tuple, deque)):
        return tuple(map(_contents, value))
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    return fingerprint(value) if isinstance(value, _PARTS) else value


def fingerprint(*machines):
    """Return all state of the machines, to check that a refused message does not change it."""
    return [(name, _contents(value)) for machine in machines
            for name, value in vars(machine).items()]
