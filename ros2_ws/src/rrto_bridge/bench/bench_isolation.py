"""Measure how neighbours on a server affect a program; print one JSON line.

One server runs on this machine, with one thread for each program. The measured program
infers again and again, and compares every result with its own computation. The
neighbours take turns of a few seconds, so that other work of the machine affects all
turns equally. There are three kinds of turns: no neighbour; an honest program that
infers without a pause; the hostile peer of test/hostile.py.

`*_ms`: median and 95th percentile of the time per inference. `*_busy`: processor
seconds per second that the neighbour and its process on the server use. `hostile`: what
the hostile peer has sent, and how its sessions ended. `--calls`: minimum number of
calls and messages that the hostile peer sends. After the turns, it sends the rest
without a pause.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

TEST = Path(__file__).resolve().parents[1] / 'test'
sys.path.insert(0, str(TEST))
sys.path.insert(0, str(Path(__file__).resolve().parents[4] / 'testing'))

from fleet_testing import Lines  # noqa: E402
from processes import Domain  # noqa: E402

# Duration of a turn in seconds. It must be less than 10 seconds: after 10 seconds of
# silence, DDS considers a stopped process dead.
TURN = 4.0
SETTLE = 0.5      # seconds at the start of a turn; inferences that begin in this time do not count
NEIGHBOURS = ('idle', 'honest', 'hostile')
TICK = os.sysconf('SC_CLK_TCK')

PROGRAM = '''
import json, sys, time
import torch
from rrto_bridge.cli.measure import load
torch.set_num_threads(1)
model = load('small').eval()
images = torch.rand(8, 1, 3, 32, 32)
with torch.no_grad():
    expected = [model(image) for image in images]
    model.cuda()
    took, wrong = [], 0
    for k in range(1 << 40):
        began = time.monotonic()
        got = model(images[k % 8].cuda()).cpu()
        ended = time.monotonic()
        took.append((ended, ended - began))
        wrong += not torch.equal(got, expected[k % 8])
        if k % 50 == 49:
            print(json.dumps([took, wrong]), flush=True)
            took, wrong = [], 0
'''


def spent(pid):
    """Return the CPU seconds of a process and its descendants, including ended descendants."""
    try:
        fields = Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()
        children = Path(f'/proc/{pid}/task/{pid}/children').read_text().split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICK + sum(map(spent, children))


def children(pid):
    return Path(f'/proc/{pid}/task/{pid}/children').read_text().split()


class Neighbour:
    """A process that runs only in its turns; between its turns it is paused (SIGSTOP)."""

    def __init__(self, process):
        self.process = process

    def pause(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)


def infer(domain, name):
    """Start a program that infers for ever; return when its first inference is complete."""
    lines = Lines(domain.rrto('run', '--server', name, '--', sys.executable, '-c', PROGRAM))
    lines.wait('^\\[')
    return lines


def measured(lines):
    """Return (end, duration) in seconds of each inference, and the number of wrong results."""
    found = [json.loads(line) for line in lines.lines() if line.startswith('[')]
    return [pair for took, _ in found for pair in took], sum(wrong for _, wrong in found)


def figures(turns, took):
    """Return `*_ms` and `*_busy` for each kind of neighbour.

    The docstring of this module describes these numbers.
    """
    result = {}
    for kind in NEIGHBOURS:
        inside = [1e3 * seconds for who, begin, end, _ in turns if who == kind
                  for ended, seconds in took if begin + SETTLE < ended - seconds and ended < end]
        if len(inside) > 1:
            result[f'{kind}_ms'] = [round(statistics.median(inside), 3),
                                    round(statistics.quantiles(inside, n=20)[-1], 3)]
            rows = [row for row in turns if row[0] == kind]
            result[f'{kind}_busy'] = round(sum(row[3] for row in rows)
                                           / sum(row[2] - row[1] for row in rows), 2)
    return result


def isolation(calls, cycles, floods=1, seed=5):
    """Run the bench; return its results."""
    domain = Domain()
    try:
        server = domain.server('iso', threads=1, lease=120.0, memory=64, operator=2.0, programs=4)
        server.wait('serving as iso')
        fork_server, = children(server.process.pid)
        victim = infer(domain, 'iso')
        own, = children(fork_server)
        began = time.monotonic()
        honest = infer(domain, 'iso').process
        hostile = domain.start_file(str(TEST / 'hostile.py'), 'iso', str(seed), str(calls),
                                    str(floods))
        neighbours = {'honest': Neighbour(honest), 'hostile': Neighbour(hostile)}
        turns = []
        for turn in range(cycles * len(NEIGHBOURS)):
            kind = NEIGHBOURS[turn % len(NEIGHBOURS)]
            for name, neighbour in neighbours.items():
                (neighbour.go_on if name == kind else neighbour.pause)()
            watched = [fork_server, *([neighbours[kind].process.pid] if kind in neighbours else [])]
            begin, before = time.monotonic(), sum(map(spent, watched)) - spent(own)
            time.sleep(TURN)
            busy = sum(map(spent, watched)) - spent(own) - before
            turns.append((kind, begin, time.monotonic(), busy))
            if hostile.poll() is not None:
                break
        honest.send_signal(signal.SIGCONT)
        honest.terminate()
        neighbours['hostile'].go_on()
        out, err = hostile.communicate(timeout=60 + calls / 5)
        assert hostile.returncode == 0, err
        seconds = time.monotonic() - began
        took, wrong = measured(victim)
        goes_on = victim.process.poll() is None and server.process.poll() is None
        return {'bench': 'rrto_isolation', 'crashes': int(not goes_on), 'wrong': wrong,
                'inferences': len(took), 'seconds': round(seconds), **figures(turns, took),
                'hostile': json.loads(out)}
    finally:
        domain.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--calls', type=int, default=5000)
    parser.add_argument('--cycles', type=int, default=8)
    parser.add_argument('--floods', type=int, default=1, help='times as often as the test floods')
    options = parser.parse_args()
    print(json.dumps(isolation(options.calls, options.cycles, options.floods)))


if __name__ == '__main__':
    main()
