"""Hand-overs between two servers: what a robot of LOPInfer and a program of RRTO lose by them.

A robot infers resnet18 at a fixed rate on one of two servers, all processes on this machine. Again
and again, the server that it uses ends by SIGTERM and is started again. The program of RRTO also
counts in a tensor on the device, so a call that is lost or executed twice shows. The program
prints one JSON line per kind of robot: inferences, `lost` (an exception instead of a result),
`wrong` (not the model's result or count), `late` (longer than the period), and for each hand-over
the seconds to the end of the server, inferences above the deadline (the period), the longest, and
the seconds until the robot uses a server again (`back_s`). `late_at`: when, how long, where.
`late_between`: late inferences more than `SETTLED` s after a hand-over, for which it is not the
cause.

`bench_handovers.py [--minutes M] [--every S] [--restart S] [--rate HZ] [--kinds lopinfer rrto]
[--side PIXELS]`.
"""

import argparse
import atexit
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from tempfile import TemporaryDirectory

import torch
from fleet_env.settings.fleet import ReachConfig
from fleet_env.vision import import_torchvision
from fleet_ros.environment import dds_environment

SETTLED = 10.0
NAMES = 'one', 'two'


def robot(options):
    """Infer until the time is up; print a JSON line per inference that tells where and how long."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = import_torchvision().models.resnet18(weights=None).eval()
    inputs = [torch.randn(1, 3, options.side, options.side) for _ in range(16)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
        infer, where, finish = {'lopinfer': shared, 'rrto': remote}[options.robot](model, inputs[0])
        atexit.register(finish)
        for _ in range(8):      # RRTO finds its sequence in the first ones
            infer(inputs[0])
        due, end = time.monotonic(), time.monotonic() + 60 * options.minutes
        for number in range(8, 1 << 40):
            time.sleep(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            if began > end:
                return
            k = number % len(inputs)
            try:
                y, count = infer(inputs[k])
                fine = count in (None, number + 1) and torch.allclose(
                    y, wanted[k], rtol=1e-3, atol=1e-4)
            except Exception as error:
                print(f'{type(error).__name__}: {error}', file=sys.stderr, flush=True)
                fine = None
            took = time.monotonic() - began
            print(json.dumps([began, took, fine, where()]), flush=True)
            due = max(due + 1 / options.rate, began)


def shared(model, example):
    """Return a function that infers with LOPInfer, one that says where, and one that ends it."""
    from lopinfer_node.api import OffloadedModel
    from lopinfer_node.ros.client_shell import ClientOptions
    from lopinfer_node.runtime.planner import TablePlanner
    made = OffloadedModel(model, 'robot', ClientOptions(
        TablePlanner('server-only'), ','.join(f'/{name}' for name in NAMES)))
    made.connect(example)
    if not made.wait(180.0):
        raise SystemExit(f'not shared: {made.reason}')
    report, before = made.report, [0]

    def where():
        offloaded, before[0] = report.offloaded > before[0], report.offloaded
        return made._client.present.options.server.strip('/') if offloaded else ''
    return lambda x: (made(x), None), where, made.close


def remote(model, example):
    """Return a function that infers with RRTO, one that says where, and one that ends it."""
    from rrto_bridge.program.connection import Connection
    used, use = [], Connection._use
    Connection._use = lambda self, engine: (used.append(engine), use(self, engine))[1]
    model, count = model.to('cuda'), torch.zeros((), dtype=torch.int64, device='cuda')

    def infer(x):
        y = model(x.to('cuda'))
        count.add_(1)
        return y.cpu(), int(count)
    return infer, lambda: getattr(used[-1].port, 'server', ''), int


class Servers:
    """Two servers of one kind, as processes, each on a core of its own."""

    def __init__(self, kind, environment, folder, restart):
        self.kind, self.environment, self.folder = kind, environment, folder
        self.restart, self._later = restart, None
        self.running = {name: self._started(name) for name in NAMES}

    def _started(self, name):
        module, own = {
            'lopinfer': ('lopinfer_node.nodes', ['-r', f'__ns:=/{name}']),
            'rrto': ('rrto_bridge.server.main', ['-p', f'name:={name}'])}[self.kind]
        process = subprocess.Popen(
            [sys.executable, '-c', f'from {module} import server_main as m; raise SystemExit(m())',
             '--ros-args', '--log-level', 'warn', *own, '-p', f'directory:={self.folder}/{name}',
             '-p', 'threads:=1', '-p', 'device:=cpu'],
            env=self.environment)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, {cores[NAMES.index(name) % len(cores)]})
        return process

    def hand_over(self, name):
        """End the server by SIGTERM and start it again; return when, and how long its end took."""
        began = time.monotonic()
        self.running[name].send_signal(signal.SIGTERM)
        code = self.running[name].wait(60)
        took = time.monotonic() - began
        self._later = threading.Timer(self.restart, self._again, (name,))
        self._later.start()
        return {'at': began, 'server': name, 'end_s': round(took, 2), 'code': code}

    def _again(self, name):
        self.running[name] = self._started(name)

    def close(self):
        if self._later is not None:
            self._later.cancel()
            self._later.join()
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)


def measured(kind, options, environment, folder):
    servers = Servers(kind, environment, folder, options.restart)
    command = [sys.executable, __file__, '--robot', kind, '--minutes', str(options.minutes),
               '--rate', str(options.rate), '--side', str(options.side)]
    if kind == 'rrto':
        command = [sys.executable, '-m', 'rrto_bridge.cli.main', 'run', '--on-loss', 'local', '--',
                   *command]
        time.sleep(15)      # both servers are up, so none is started
    program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    rows, overs, due = [], [], None
    try:
        for line in program.stdout:
            began, _, _, place = row = json.loads(line)
            rows.append(row)
            due = due or began + options.every / 2
            if began > due and place:       # the robot uses a server, and it is this one
                overs.append(servers.hand_over(place))
                due += options.every
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(30)
        program.kill()
        servers.close()
    return summary(rows, overs, 1 / options.rate, program.returncode)


def summary(rows, overs, deadline, code):
    until = [over['at'] for over in overs[1:]] + [float('inf')]
    for over, end in zip(overs, until, strict=True):
        begun = over.pop('at')
        mine = [r for r in rows if begun - 1 < r[0] < end - 1 and r[0] + r[1] > begun]
        first = next((r for r in mine if r[0] > begun + over['end_s'] and r[3]), None)
        over.update(late=sum(r[1] > deadline for r in mine if r[0] < begun + SETTLED),
                    longest_s=round(max((r[1] for r in mine), default=0), 3),
                    alone=sum(not r[3] for r in mine),
                    back_s=first and round(first[0] + first[1] - begun, 2))
        over['at'] = begun
    quiet = [r[1] for r in rows if all(
        r[0] + r[1] < o['at'] or r[0] > o['at'] + SETTLED for o in overs)]
    for over in overs:
        over['at'] = round(over['at'] - rows[0][0], 1)
    late = [over['late'] for over in overs]
    return {'inferences': len(rows), 'exit_code': code, 'lost': sum(r[2] is None for r in rows),
            'wrong': sum(r[2] is False for r in rows), 'late': sum(r[1] > deadline for r in rows),
            'late_between': sum(t > deadline for t in quiet),
            'median_s': round(statistics.median(r[1] for r in rows), 4),
            'longest_s': round(max(r[1] for r in rows), 3), 'hand_overs': len(overs),
            'late_per_hand_over': {n: late.count(n) for n in sorted(set(late))},
            'each': overs, 'late_at': [[round(r[0] - rows[0][0], 2), round(r[1], 3), r[3]]
                                       for r in rows if r[1] > deadline]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--minutes', type=float, default=2.0)
    parser.add_argument('--every', type=float, default=30.0, help='s between hand-overs')
    parser.add_argument('--restart', type=float, default=12.0,
                        help='s until a server that ended is started again; later than SETTLED, '
                        'its start takes no processor time while the robot changes servers')
    parser.add_argument('--rate', type=float, default=10.0)
    parser.add_argument('--side', type=int, default=224)
    parser.add_argument('--kinds', nargs='+', default=['lopinfer', 'rrto'])
    parser.add_argument('--robot')
    options = parser.parse_args()
    if options.robot:
        robot(options)
        return
    environment = {**os.environ, **dds_environment(ReachConfig()), 'OMP_NUM_THREADS': '1',
                   'OMP_WAIT_POLICY': 'passive', 'ROS_DOMAIN_ID': str(1 + os.getpid() % 100)}
    for kind in options.kinds:
        with TemporaryDirectory() as folder:
            print(json.dumps({'bench': f'handovers {kind}', 'model': 'resnet18',
                              **measured(kind, options, environment, folder)}), flush=True)


if __name__ == '__main__':
    main()
