"""Checks by brute force whether a sequence that the search accepts is correct for its `Log`."""

from rrto_bridge.protocol.record import HTOD


def exact(value):
    """Return the type and the value of an argument; every handle becomes 'tensor'."""
    if type(value) is tuple:
        return tuple(exact(v) for v in value)
    if type(value).__name__ == 'Ref':
        return 'tensor'
    return type(value).__name__, repr(value)


def canonical(calls):
    """Return (rows, outer handles, positions) of a pass.

    Each row describes one call without its handles, so equal passes have equal rows. The outer
    handles name the tensors that a call uses before any call of the pass has returned them. The
    positions map each handle that a call returns to (number of the call, number of the result).
    """
    made, rows, outer = {}, [], []
    for k, call in enumerate(calls):
        given = []
        for handle in call.inputs():
            if handle in made:
                given.append(made[handle])
            else:
                outer.append(handle)
                given.append('outer')
        returned = [call.inputs().index(h) if h in call.inputs() else -1 for h in call.results]
        for j, handle in enumerate(call.results):
            made.setdefault(handle, (k, j))
        rows.append((call.op, exact(call.arguments), exact(call.keywords), tuple(given),
                     tuple(returned), call.metas, call.wanted))
    return rows, outer, made


def carried(calls, length, end):
    """Return how many tensors of earlier passes are used by the pass that ends with call `end`.

    Tensors that are the same in every pass do not count.
    """
    _, now, _ = canonical(calls[end + 1 - length:end + 1])
    _, before, _ = canonical(calls[end + 1 - 2 * length:end + 1 - length])
    return len({a for a, b in zip(now, before, strict=True) if a != b})


def wrong(log, end, sequence, repetitions):
    """Return why the sequence must not be accepted after call `end`; '' if it may be accepted."""
    length = len(sequence.steps)
    if length != log.length:
        return f'length {length}, not {log.length}'
    first = end + 1 - repetitions * length
    if first < 0:
        return 'not seen often enough'
    blocks = [canonical(log.calls[s:s + length]) for s in range(first, end + 1, length)]
    if any(b[0] != blocks[-1][0] for b in blocks):
        return 'the passes differ'
    for column, handles in enumerate(zip(*(b[1] for b in blocks), strict=True)):
        if len(set(handles)) == 1:
            continue
        places = [b[2].get(h) for b, h in zip(blocks, handles[1:], strict=False)]
        if None in places or len(set(places)) != 1:
            return f'outer tensor {column} has no role'
    if carried(log.calls, length, end) > log.carried:
        return 'cut at another place'
    if sequence.steps[0].op != HTOD:
        return 'does not start with its input'
    if not sequence.steps[-1].wanted:
        return 'does not end with an output'
    return ''


def answer(search, log):
    """Return the first accepted sequence and the position of the call that completes it.

    Return (None, None) if the search accepts no sequence.
    """
    for position, call in enumerate(log.calls):
        found = search.observe(call)
        if found is not None:
            return found, position
        for handle in log.frees.get(position, ()):
            search.freed(handle)
    return None, None
