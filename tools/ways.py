"""Draws three ways through the code as pictures: of a gradient, an inference and an operator.

`python tools/ways.py` writes `docs/images/way_*.svg`. `testing/test_ways.py` runs each way and
checks that the program calls the functions in the order of the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent.parent / 'docs/images'
COLUMNS = {'robot': 20, 'server': 500}
WIDTH, HEIGHT, GAP, TOP = 440, 46, 12, 76


@dataclass(frozen=True)
class Step:
    """One function on a way: where it runs, its file in the package, its name, its task."""

    place: str
    file: str
    name: str
    does: str


@dataclass(frozen=True)
class Way:
    """The functions that handle a gradient, inference or operator, in order of first calls."""

    package: str
    title: str
    robot: str
    server: str
    steps: tuple[Step, ...]


def _at(place: str, *steps: tuple[str, str, str]) -> tuple[Step, ...]:
    return tuple(Step(place, *step) for step in steps)


WAYS = {
    'gradient': Way('rog_core', 'A gradient, from the batch to all robots', 'worker',
                    'parameter server', (
        *_at('robot',
             ('worker/worker.py', 'Worker.on_gradient', 'the shell has computed a batch'),
             ('worker/computation.py', 'OfGradient.keep', 'what to do with this kind of gradient'),
             ('worker/accumulator.py', 'Accumulator.accumulate', 'adds it to the pending rows'),
             ('worker/worker.py', 'Worker._plan', 'which rows, in which order, for how long'),
             ('transfer/plan.py', 'importance', 'ranks the rows'),
             ('transfer/sender.py', 'Sender.poll', 'what the link can take now'),
             ('codecs/base.py', 'Codec.take', 'encodes rows; the residual stays pending')),
        *_at('server',
             ('server/server.py', 'Server.on_chunk', 'the shell has received a chunk'),
             ('transfer/receiver.py', 'Receiver.on_chunk', 'checks it; takes each row once'),
             ('server/push_filter.py', 'PushFilter.passed', 'refuses what is implausible'),
             ('server/aggregation.py', 'Aggregation.take', 'gives the rows to the method'),
             ('codecs/base.py', 'Codec.add', 'decodes and adds them to the master rows'),
             ('server/server.py', 'Server.on_end', 'the push is over'),
             ('server/server.py', 'Server._release', 'asks the method which robots may go on'),
             ('server/server.py', 'Server._pull', 'plans the pull'),
             ('server/mirror.py', 'Mirror.encode', 'encodes what the robot does not have yet')),
        *_at('robot',
             ('worker/worker.py', 'Worker._apply', 'adds the rows to the model'),
             ('worker/worker.py', 'Worker._granted', 'asks the shell for the next batch')))),
    'inference': Way('lopinfer_node', 'An inference that is shared', 'robot', 'server', (
        *_at('robot',
             ('runtime/choice.py', 'PlanChoice.choose', 'the best plan for this link'),
             ('runtime/client.py', 'ClientMachine.begin', 'starts the request'),
             ('runtime/execution.py', 'Execution.runnable', 'steps whose inputs are here'),
             ('runtime/execution.py', 'Execution.compute', 'computes a part of an operator'),
             ('runtime/client.py', 'ClientMachine.on_computed', 'offers what the server needs'),
             ('runtime/outbox.py', 'Outbox.poll', 'sends pieces while the robot computes')),
        *_at('server',
             ('runtime/server.py', 'ServerMachine.on_piece', 'checks a piece, keeps it'),
             ('runtime/server.py', 'ServerMachine.work', 'the next steps that can run'),
             ('runtime/server.py', 'ServerMachine.on_computed', 'sends what the robot needs')),
        *_at('robot',
             ('runtime/client.py', 'ClientMachine.on_piece', 'takes a piece of the result'),
             ('runtime/client.py', 'ClientMachine.end', 'ends the request'),
             ('runtime/feedback.py', 'Feedback.note', 'compares the time with the plan')))),
    'operator': Way('rrto_bridge', 'An operator of a sequence that is known', 'program', 'server', (
        *_at('robot',
             ('program/device.py', 'Device.dispatch', "PyTorch calls the program's device"),
             ('program/device.py', 'Device.upload', 'the input of the inference'),
             ('client/replay.py', 'ReplayClient.call', 'a known sequence begins'),
             ('client/machine.py', 'ClientMachine.ask', 'requests the whole sequence'),
             ('client/machine.py', 'ClientMachine.flush', 'one message')),
        *_at('server',
             ('execution/perform.py', 'Performer.perform', 'decodes the message'),
             ('execution/replay_server.py', 'ReplayServer.apply', 'starts the recorded plan'),
             ('execution/replay_server.py', 'ReplayServer.advance', 'runs all its operators'),
             ('execution/replay_server.py', '_Run.answer', 'sends the result')),
        *_at('robot',
             ('client/replay.py', 'ReplayClient.advance', 'next operators: nothing is sent'),
             ('program/device.py', 'Device.download', 'the program reads the result'),
             ('client/machine.py', 'ClientMachine.await_value', 'waits for the one reply')))),
}


def drawing(way: Way) -> str:
    """Return an SVG picture of the steps of ``way``."""
    bottom = TOP + len(way.steps) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {bottom + 10}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13" role="img" '
        f'aria-label="{escape(way.title)}">',
        '<defs><marker id="to" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="#33415c"/></marker></defs>',
        f'<rect width="960" height="{bottom + 10}" fill="#ffffff"/>',
        f'<text x="20" y="28" font-size="17" font-weight="bold">{escape(way.title)}</text>']
    for place, at in COLUMNS.items():
        parts.append(f'<text x="{at}" y="60" font-weight="bold" fill="#33415c">'
                     f'{escape(getattr(way, place))}</text>')
    middle = {place: at + WIDTH // 2 for place, at in COLUMNS.items()}
    for number, step in enumerate(way.steps):
        x, y = COLUMNS[step.place], TOP + number * (HEIGHT + GAP)
        parts.append(
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#f3f6fb" '
            'stroke="#33415c"/>'
            f'<text x="{x + 12}" y="{y + 19}" font-family="DejaVu Sans Mono, monospace" '
            f'font-weight="bold">{escape(step.name)}</text>'
            f'<text x="{x + 12}" y="{y + 37}" font-size="12" fill="#33415c">{escape(step.does)}'
            '</text>'
            f'<text x="{x + WIDTH - 12}" y="{y + 19}" text-anchor="end" font-size="11" '
            f'fill="#5b6880">{escape(step.file)}</text>')
        if number + 1 < len(way.steps):
            following = way.steps[number + 1].place
            below = y + HEIGHT + GAP
            path = (f'M{middle[step.place]} {y + HEIGHT} V{below}' if following == step.place else
                    f'M{middle[step.place]} {y + HEIGHT} V{y + HEIGHT + GAP // 2} '
                    f'H{middle[following]} V{below}')
            parts.append(f'<path d="{path}" fill="none" stroke="#33415c" stroke-width="1.5" '
                         'marker-end="url(#to)"/>')
    return '\n'.join([*parts, '</svg>\n'])


def main() -> None:
    """Write the pictures."""
    for name, way in WAYS.items():
        (IMAGES / f'way_{name}.svg').write_text(drawing(way))


if __name__ == '__main__':
    main()
