"""Messages that the protocol does not allow, and what must not change when one arrives."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from rog_core.messages import MAX_SHARDS, Ack, Chunk, Command, End, Kind, Receipt, Work

HANDLER = {Chunk: 'on_chunk', End: 'on_end', Ack: 'on_ack', Receipt: 'on_receipt'}


def _scale(chunk, bits):
    values = chunk.values.copy()
    if chunk.codec == 0:  # raw: a float32
        values[2:4] = bits & 255, bits >> 8
    else:
        values[:2] = bits & 255, bits >> 8
    return replace(chunk, values=values)


BAD_WORK = {
    'no shards': Work(0, (0,), (1.0,)),
    'too many shards': Work(MAX_SHARDS + 1, (0,), (1.0,)),
    'a shard too high': Work(4, (1, 4), (1.0, 1.0)),
    'a shard below 0': Work(4, (-1,), (1.0,)),
    'a weight that is NaN': Work(4, (1, 2), (1.0, math.nan)),
    'an infinite weight': Work(4, (1,), (math.inf,)),
    'more shards than weights': Work(4, (1, 2), (1.0,)),
    'more weights than shards': Work(4, (1,), (1.0, 2.0)),
    'nothing to do': Work(4, (), ()),
}


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
        # Out of range, and not ascending.
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
        command = end.command
        faults += [replace(end, command=replace(command, work=work)) for work in BAD_WORK.values()]
        faults += [replace(end, command=Command(command.next_iteration, 0.1, 0, 'no such method')),
                   replace(end, command=replace(command, next_iteration=0)),
                   replace(end, command=replace(command, mta_time=math.nan)),
                   replace(end, command=replace(command, patience=math.nan)),
                   replace(end, command=replace(command, patience=-1.0))]
    return faults


def corrupted(rng, message):
    """One of the ways in which a message of this type can break the rules."""
    if isinstance(message, Chunk):
        # Not one that has arrived: a double is acknowledged without a look at it.
        message = replace(message, sequence=message.sequence + 1000)
        faults = _chunk_faults(message)
    elif isinstance(message, End):
        faults = _end_faults(message)
    elif isinstance(message, Ack):
        faults = [replace(message, next_expected=1 << 30), replace(message, next_expected=-5),
                  replace(message, received_mask=1 << 63)]
    else:
        faults = [replace(message, chunks=message.chunks + 1),
                  replace(message, taken=message.taken + b'\0')]
    kind = Kind.PULL if message.transfer.kind == Kind.PUSH else Kind.PUSH
    if isinstance(message, (Chunk, End)) and message.transfer.kind != Kind.ANCHOR:
        faults.append(replace(message, transfer=replace(message.transfer, kind=kind)))
    return rng.choice(faults)


def _receiver(receiver):
    if receiver is None:
        return None
    return (receiver.transfer, receiver.receipt, receiver.bytes_received, receiver.floor,
            bytes(receiver._flags), receiver._next, len(receiver._ids))


def _sender(sender):
    if sender is None:
        return None
    return (sender.transfer, sender.state, sender.bytes_sent, sender.receipt, sender._arrived,
            sender._fresh, sender._in_flight, sender._window, sender.link.delivered)


def fingerprint(server, worker):
    """Everything that a refused message must leave as it is."""
    store = worker.accumulator
    rules, anchor = server.rules, store.anchor
    held = [(name, value.tobytes()) for name, value in rules.update.state().items()]
    members = [(m.robot, m.state, m.iteration, m.slowest, m.versions.tobytes(), m.attempt,
                m.mirror.rows.tobytes(), _receiver(m.push), _sender(m.sender))
               for m in server.members.values()]
    return (server.master.tobytes(), server.iteration, members, store.weights.tobytes(),
            store.model.tobytes(), store.pending.tobytes(), worker.state, worker.iteration,
            worker.command, worker.method, worker.pushed_at.tobytes(), _receiver(worker.pull),
            _sender(worker.push), held, rules.policy.state(), str(rules.policy.method),
            anchor and (anchor[0].tobytes(), anchor[1].tobytes()))
