"""Several robots that share one server, beside plain PyTorch with a batch of as many requests.

The server computes on one thread (or a GPU), and everything of the model; each robot is a process
that asks again as soon as it has an answer. The program prints one JSON line. For each number of
robots, it contains requests/s, median and 95th percentile of the latency in seconds, and how many
requests fell back to the robot: with batches (`together`), and with a server that computes each
request alone (`in_turns`). `plain`: inferences/s of PyTorch in this process, with a batch of that
size. `memory`: MiB of the server's process.

`bench_robots.py [--seconds S] [--robots N ...] [--device D] [MODEL[@SIDE]]`; SIDE is the side of
the square input in pixels (default 224).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / 'test'))
from lopinfer_node.api import OffloadedModel  # noqa: E402
from lopinfer_node.cli.rig import private_domain  # noqa: E402
from lopinfer_node.ros.client_shell import ClientOptions  # noqa: E402
from lopinfer_node.runtime.planner import TablePlanner  # noqa: E402
from models import named  # noqa: E402

SERVER = ('import fleet_compute.schedule as s; s.MOST = {most}\n'
          'from lopinfer_node.nodes import server_main; raise SystemExit(server_main())')


def model_of(name):
    name, _, side = name.partition('@')
    side = int(side or 224)
    torch.manual_seed(0)
    return named(name).eval(), torch.randn(1, 3, side, side)


def robot(options):
    """Ask for `options.seconds` seconds after the line 'go'; print the latencies as JSON."""
    model, example = model_of(options.model)
    shared = OffloadedModel(model, f'robot{options.robot}',
                            ClientOptions(TablePlanner('server-only')))
    shared.connect(example)
    if not shared.wait(180.0):
        raise SystemExit(f'not shared: {shared.reason}')
    print('ready', flush=True)
    sys.stdin.readline()
    for _ in range(3):
        shared(example)
    before, end, taken = shared.report.fallbacks, time.monotonic() + options.seconds, []
    while time.monotonic() < end:
        began = time.monotonic()
        shared(example)
        taken.append(time.monotonic() - began)
    print(json.dumps({'taken': taken, 'fallbacks': shared.report.fallbacks - before}), flush=True)
    shared.close()


def served(options, robots, most, folder):
    """Measure one server with so many robots."""
    server = subprocess.Popen(
        [sys.executable, '-c', SERVER.format(most=most), '--ros-args', '--log-level', 'warn',
         '-r', '__ns:=/lopinfer', '-p', f'directory:={folder}', '-p', 'threads:=1',
         '-p', f'device:={options.device}'])
    clients = [subprocess.Popen(
        [sys.executable, __file__, options.model, '--robot', str(k), '--seconds',
         str(options.seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for k in range(1, robots + 1)]
    try:
        for client in clients:
            assert client.stdout.readline() == 'ready\n', 'a robot has not met the server'
        for client in clients:
            client.stdin.write('go\n')
            client.stdin.flush()
        found = [json.loads(client.stdout.readline()) for client in clients]
        status = Path(f'/proc/{server.pid}/status').read_text()
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
            'memory': int(status.split('VmRSS:')[1].split()[0]) >> 10}


def plain(options, size):
    """Return inferences/s of PyTorch with a batch of this size, on one thread or the device."""
    torch.set_num_threads(1)
    model, example = model_of(options.model)
    device = options.device.partition(',')[0]
    model, batch = model.to(device), torch.cat([example] * size).to(device)
    rounds, end = [], time.perf_counter() + options.seconds
    with torch.inference_mode():
        while time.perf_counter() < end:
            began = time.perf_counter()
            model(batch)[0].cpu()
            rounds.append(time.perf_counter() - began)
    return round(size / float(np.median(rounds)), 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('model', nargs='?', default='resnet18')
    parser.add_argument('--robots', type=int, nargs='+', default=[1, 2, 4, 8])
    parser.add_argument('--seconds', type=float, default=15.0)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--robot', type=int)
    options = parser.parse_args()
    os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
    if options.robot:
        robot(options)
        return
    rows = {}
    with private_domain(), TemporaryDirectory() as folder:
        for robots in options.robots:
            rows[robots] = {'plain_before': plain(options, robots),
                            'together': served(options, robots, 16, folder),
                            'in_turns': served(options, robots, 1, folder),
                            'plain_after': plain(options, robots)}
    print(json.dumps({'model': options.model, 'robots': rows}))


if __name__ == '__main__':
    main()
