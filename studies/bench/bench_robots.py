"""Several robots that share one server, beside plain PyTorch with a batch of as many requests.

The server computes on one thread (or a GPU), and everything of the model; each robot is a process
that asks again as soon as it has an answer. The program prints one JSON line. For each number of
robots, it contains requests/s, median and 95th percentile of the latency in seconds, and how many
requests fell back to the robot: of LOPInfer with batches (`together`), and with a server that
computes each request alone (`in_turns`); of unmodified programs under RRTO for which one process
computes (`rrto`), or one each (`rrto_apart`). `plain`: inferences/s of PyTorch in this process,
with a batch of that size. `memory`: MiB of the server's processes (their share, PSS).

`bench_robots.py [--seconds S] [--robots N ...] [--device D] [--part P ...] [MODEL[@SIDE]]`; MODEL
is a model of torchvision, `yolo`, a detector of that kind, or `act`, the policy of fleet_policy's
benches; SIDE is the side of the square input in pixels (default 224).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

PACKAGES = Path(__file__).parents[2] / 'ros2_ws' / 'src'
sys.path.insert(0, str(PACKAGES / 'lopinfer_node' / 'test'))
from lopinfer_node.api import OffloadedModel  # noqa: E402
from lopinfer_node.cli.rig import private_domain  # noqa: E402
from lopinfer_node.ros.client_shell import ClientOptions  # noqa: E402
from lopinfer_node.runtime.planner import TablePlanner  # noqa: E402
from models import named  # noqa: E402

SERVER = ('import fleet_compute.schedule as s; s.MOST = {most}\n'
          'from lopinfer_node.nodes import server_main; raise SystemExit(server_main())')


PARTS = ('together', 'in_turns', 'rrto', 'rrto_apart')


class Conv(nn.Sequential):
    def __init__(self, inner, outer, size=3, stride=1):
        super().__init__(nn.Conv2d(inner, outer, size, stride, size // 2, bias=False),
                         nn.BatchNorm2d(outer), nn.SiLU())


class Split(nn.Module):
    """Two residual convolutions on one half of the channels; all of it is concatenated."""

    def __init__(self, inner, outer):
        super().__init__()
        half = outer // 2
        self.into, self.out = Conv(inner, outer, 1), Conv(2 * outer, outer, 1)
        self.steps = nn.ModuleList(nn.Sequential(Conv(half, half), Conv(half, half))
                                   for _ in range(2))

    def forward(self, x):
        parts = list(self.into(x).chunk(2, 1))
        for step in self.steps:
            parts.append(parts[-1] + step(parts[-1]))
        return self.out(torch.cat(parts, 1))


class Yolo(nn.Module):
    """Backbone, pooling pyramid, neck with upsampling and heads at three scales, as in YOLO."""

    def __init__(self, width=16, classes=80):
        super().__init__()
        a, b, c, d = (width << k for k in range(1, 5))
        self.stem = nn.Sequential(Conv(3, width, 3, 2), Conv(width, a, 3, 2), Split(a, a))
        self.eight = nn.Sequential(Conv(a, b, 3, 2), Split(b, b))
        self.sixteen = nn.Sequential(Conv(b, c, 3, 2), Split(c, c))
        self.last = nn.Sequential(Conv(c, d, 3, 2), Split(d, d), Conv(d, d // 2, 1))
        self.pool, self.pooled = nn.MaxPool2d(5, 1, 2), Conv(2 * d, d, 1)
        self.up, self.first, self.second = nn.Upsample(scale_factor=2), Split(c + d, c), \
            Split(b + c, b)
        self.down, self.third = Conv(b, b, 3, 2), Split(b + c, c)
        self.heads = nn.ModuleList(nn.Sequential(Conv(n, b), nn.Conv2d(b, 4 + classes, 1))
                                   for n in (b, c, d))

    def forward(self, x):
        eight = self.eight(self.stem(x))
        sixteen = self.sixteen(eight)
        pools = [self.last(sixteen)]
        for _ in range(3):
            pools.append(self.pool(pools[-1]))
        low = self.pooled(torch.cat(pools, 1))
        middle = self.first(torch.cat([self.up(low), sixteen], 1))
        high = self.second(torch.cat([self.up(middle), eight], 1))
        scales = high, self.third(torch.cat([self.down(high), middle], 1)), low
        return torch.cat([head(y).flatten(2) for head, y in zip(self.heads, scales, strict=True)],
                         2).sigmoid()


def model_of(name):
    """Return a model and its inputs."""
    name, _, side = name.partition('@')
    side = int(side or 224)
    torch.manual_seed(0)
    if name == 'act':
        sys.path.append(str(PACKAGES / 'fleet_policy' / 'bench'))
        import act
        images = [torch.randint(256, (1, 3, act.HEIGHT, act.WIDTH), dtype=torch.uint8)
                  for _ in act.CAMERAS]
        return act.Act().eval(), (*images, torch.randn(1, act.JOINTS))
    return (Yolo() if name == 'yolo' else named(name)).eval(), (torch.randn(1, 3, side, side),)


def robot(options):
    """Ask for `options.seconds` seconds after the line 'go'; print the latencies as JSON."""
    model, example = model_of(options.model)
    shared = OffloadedModel(model, f'robot{options.robot}',
                            ClientOptions(TablePlanner('server-only')))
    shared.connect(*example)
    if not shared.wait(180.0):
        raise SystemExit(f'not shared: {shared.reason}')
    print('ready', flush=True)
    sys.stdin.readline()
    for _ in range(3):
        shared(*example)
    before, end, taken = shared.report.fallbacks, time.monotonic() + options.seconds, []
    while time.monotonic() < end:
        began = time.monotonic()
        shared(*example)
        taken.append(time.monotonic() - began)
    print(json.dumps({'taken': taken, 'fallbacks': shared.report.fallbacks - before}), flush=True)
    shared.close()


def program(options):
    """Ask as `robot` does, as a program that knows nothing of a server."""
    model, example = model_of(options.model)
    with torch.inference_mode():
        model = model.cuda()

        def infer():
            y = model(*(x.cuda() for x in example))
            return (y if isinstance(y, torch.Tensor) else y[0]).cpu()
        for _ in range(24):
            infer()
        print('ready', flush=True)
        sys.stdin.readline()
        for _ in range(3):
            infer()
        end, taken = time.monotonic() + options.seconds, []
        while time.monotonic() < end:
            began = time.monotonic()
            infer()
            taken.append(time.monotonic() - began)
    print(json.dumps({'taken': taken, 'fallbacks': 0}), flush=True)


def commands(options, part, folder):
    """Return the commands of a server and of a robot."""
    ask = [sys.executable, __file__, options.model, '--seconds', str(options.seconds)]
    if part.startswith('rrto'):
        share = 'always' if part == 'rrto' else 'never'
        return [sys.executable, '-m', 'rrto_bridge.server.main', '--ros-args', '--log-level',
                'warn', '-p', 'name:=bench', '-p', 'threads:=1', '-p', f'device:={options.device}',
                '-p', f'share:={share}', '-p', f'directory:={folder}'], [
                    sys.executable, '-m', 'rrto_bridge.cli.main', 'run', '--server', 'bench', '--',
                    *ask, '--program']
    return [sys.executable, '-c', SERVER.format(most=1 if part == 'in_turns' else 16), '--ros-args',
            '--log-level', 'warn', '-r', '__ns:=/lopinfer', '-p', f'directory:={folder}', '-p',
            'threads:=1', '-p', f'device:={options.device}'], ask


def memory(pid):
    """Return the MiB of a process and of those that it has started, shared pages divided."""
    own, children = 0, []
    with suppress(OSError):     # a thread or a process has ended
        own = int(Path(f'/proc/{pid}/smaps_rollup').read_text().split('Pss:')[1].split()[0]) >> 10
        for task in Path(f'/proc/{pid}/task').iterdir():
            with suppress(OSError):
                children += map(int, (task / 'children').read_text().split())
    return own + sum(map(memory, children))


def served(options, robots, part, folder):
    """Measure one server with so many robots."""
    command, ask = commands(options, part, folder)
    server = subprocess.Popen(command)
    clients = [subprocess.Popen([*ask, '--robot', str(k)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True) for k in range(1, robots + 1)]
    try:
        for client in clients:
            assert client.stdout.readline() == 'ready\n', 'a robot has not met the server'
        for client in clients:
            client.stdin.write('go\n')
            client.stdin.flush()
        found = [json.loads(client.stdout.readline()) for client in clients]
        taking = memory(server.pid)
    finally:
        for process in (*clients, server):
            process.terminate()
        for process in (*clients, server):
            process.wait(20)
    taken = np.concatenate([f['taken'] for f in found])
    return {'per_s': round(sum(len(f['taken']) / sum(f['taken']) for f in found), 2),
            'median_s': round(float(np.median(taken)), 4),
            'p95_s': round(float(np.percentile(taken, 95)), 4),
            'least': min(len(f['taken']) for f in found),
            'most': max(len(f['taken']) for f in found),
            'fallbacks': sum(f['fallbacks'] for f in found),
            'memory': taking}


def plain(options, size):
    """Return inferences/s of PyTorch with a batch of this size, on one thread or the device."""
    torch.set_num_threads(1)
    model, example = model_of(options.model)
    device = options.device.partition(',')[0]
    model, batch = model.to(device), [torch.cat([x] * size).to(device) for x in example]
    rounds, end = [], time.perf_counter() + options.seconds
    with torch.inference_mode():
        while time.perf_counter() < end:
            began = time.perf_counter()
            model(*batch)[0].cpu()
            rounds.append(time.perf_counter() - began)
    return round(size / float(np.median(rounds)), 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('model', nargs='?', default='resnet18')
    parser.add_argument('--robots', type=int, nargs='+', default=[1, 2, 4, 8, 16])
    parser.add_argument('--seconds', type=float, default=15.0)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--part', nargs='+', choices=PARTS, default=PARTS)
    parser.add_argument('--robot', type=int)
    parser.add_argument('--program', action='store_true')
    options = parser.parse_args()
    os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
    if options.robot:
        torch.set_num_threads(1)
        (program if options.program else robot)(options)
        return
    rows = {}
    with private_domain(), TemporaryDirectory() as folder:
        for robots in options.robots:
            rows[robots] = {'plain_before': plain(options, robots),
                            **{part: served(options, robots, part, folder)
                               for part in options.part},
                            'plain_after': plain(options, robots)}
            print(robots, rows[robots], file=sys.stderr, flush=True)
    print(json.dumps({'model': options.model, 'robots': rows}))


if __name__ == '__main__':
    main()
