"""What a right answer of the search is, by brute force and from the truth of the generator."""

from rrto_bridge.protocol.record import HTOD


def exact(value):
    """An argument with its type, handles left out."""
    if type(value) is tuple:
        return tuple(exact(v) for v in value)
    if type(value).__name__ == 'Ref':
        return 'tensor'
    return type(value).__name__, repr(value)


def canonical(calls):
    """A pass without handles of its own: equal passes are equal here; and its outer handles."""
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
    """How many tensors the pass that ends here takes from earlier ones, the same ones left out."""
    _, now, _ = canonical(calls[end + 1 - length:end + 1])
    _, before, _ = canonical(calls[end + 1 - 2 * length:end + 1 - length])
    return len({a for a, b in zip(now, before, strict=True) if a != b})


def wrong(log, end, sequence, repetitions):
    """Why it is wrong to accept the sequence after call `end`; empty if it is right."""
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
    """First accepted sequence and where, or (None, None)."""
    for position, call in enumerate(log.calls):
        found = search.observe(call)
        if found is not None:
            return found, position
        for handle in log.frees.get(position, ()):
            search.freed(handle)
    return None, None
