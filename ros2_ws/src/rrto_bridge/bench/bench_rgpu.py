"""RRTO beside rgpu 0.1.1, another PyTorch device over the network, in one run.

Both run the same inference of a torchvision model on a server of this machine with one thread. The
link to RRTO's server is emulated by RRTO itself, that to rgpu's by a TCP proxy with the same delay
and rate in each direction. The program prints one JSON line: for each round trip and each way,
seconds of the first inference, median and largest of the later ones, and the largest difference
from the model on this machine. Without rgpu the line says so.

`bench_rgpu.py [--model M] [--round-trips MS ...] [--rate MB/s] [--inferences N]`. It needs PyTorch
2.14 or newer and rgpu: `.versions/2.14/bin/python` of `make versions`, after
`.versions/2.14/bin/python -m pip install --no-deps rgpu==0.1.1`.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment

PROGRAM = '''
import json, sys, time, torch
from fleet_env.vision import import_torchvision
device, way, name, count = sys.argv[1:]
torch.set_num_threads(1)
if device == 'rgpu':
    import rgpu
torch.manual_seed(0)
model = import_torchvision().models.get_model(name, weights=None).eval()
x = torch.randn(1, 3, 224, 224)
with torch.no_grad():
    want = model(x)
    model = model.to(device)
    run = torch.compile(model, backend='rgpu') if way == 'compiled' else model
    taken = []
    for _ in range(int(count)):
        began = time.perf_counter()
        y = run(x.to(device)).cpu()
        taken.append(time.perf_counter() - began)
print(json.dumps({'taken': taken, 'error': float((y - want).abs().max() / want.abs().max())}))
'''


class Proxy:
    """Forwards TCP connections to a port, with a delay and a rate in each direction."""

    def __init__(self, port, delay, rate):
        self.to, self.delay, self.rate = port, delay, rate
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        threading.Thread(target=self._run, args=(ready,), daemon=True).start()
        ready.wait()

    def _run(self, ready):
        async def serve():
            server = await asyncio.start_server(self._forward, '127.0.0.1', 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
        self.loop.run_until_complete(serve())
        self.loop.run_forever()

    async def _forward(self, reader, writer):
        there = await asyncio.open_connection('127.0.0.1', self.to)
        await asyncio.gather(self._carry(reader, there[1]), self._carry(there[0], writer))

    async def _carry(self, reader, writer):
        queue, free = asyncio.Queue(), 0.0

        async def deliver():
            while (entry := await queue.get()) is not None:
                at, data = entry
                await asyncio.sleep(max(0.0, at - self.loop.time()))
                writer.write(data)
            writer.close()
        task = asyncio.ensure_future(deliver())
        while data := await reader.read(16384):
            free = max(free, self.loop.time()) + len(data) / self.rate
            queue.put_nowait((free + self.delay, data))
            await asyncio.sleep(max(0.0, free - self.loop.time() - 0.01))   # a full link holds back
        queue.put_nowait(None)
        await task


def result(command, environment, limit):
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True,
                          timeout=limit, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {'failed': done.returncode}
    state = json.loads(lines[-1])
    first, *taken = state['taken']
    late = taken[len(taken) // 2:]      # RRTO's search and rgpu's compiler have ended by then
    return {'first_s': round(first, 3), 'median_s': round(statistics.median(late), 4),
            'most_s': round(max(late), 4), 'error': round(state['error'], 8)}


def wait_for(port):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(('127.0.0.1', port)).close()
            return
        time.sleep(0.1)
    raise SystemExit('the server of rgpu does not start')


def rgpu_rows(options, delay, environment):
    port = 9800 + os.getpid() % 200
    server = subprocess.Popen([sys.executable, '-m', 'rgpu.server', '--device', 'cpu', '--port',
                               str(port)], env=environment)
    proxy = Proxy(port, delay, options.rate * 1e6)
    there = {**environment, 'RGPU_OPSERVER': f'127.0.0.1:{proxy.port}'}
    try:
        wait_for(port)
        return {way: result([sys.executable, '-c', PROGRAM, 'rgpu', way, options.model,
                             str(options.inferences)], there, 300) for way in ('eager', 'compiled')}
    finally:
        server.terminate()
        server.wait()


def rrto_row(options, delay, environment):
    link = {'rate': options.rate * 8, 'latency': delay}
    server = subprocess.Popen(
        [sys.executable, '-m', 'rrto_bridge.server.main', '--ros-args', '-p', 'name:=bench', '-p',
         'device:=cpu', '-p', 'threads:=1', *(a for k, v in link.items() for a in (
             '-p', f'link.{k}:={float(v)}'))], env=environment)
    try:
        return result([sys.executable, '-m', 'rrto_bridge.cli.main', 'run', '--server', 'bench',
                       *(a for k, v in link.items() for a in (f'--link-{k}', str(v))), '--',
                       sys.executable, '-c', PROGRAM, 'cuda', 'eager', options.model,
                       str(options.inferences)], environment, 300)
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--model', default='resnet18')
    parser.add_argument('--round-trips', type=float, nargs='+', default=[1, 10, 30, 150],
                        metavar='MS')
    parser.add_argument('--rate', type=float, default=4.0, help='MB/s in each direction')
    parser.add_argument('--inferences', type=int, default=24)
    options = parser.parse_args()
    if importlib.util.find_spec('rgpu') is None:
        print(json.dumps({'skipped': 'rgpu is not installed'}))
        return
    environment = {**os.environ, **dds_environment(ReachConfig()), 'OMP_NUM_THREADS': '1',
                   'OMP_WAIT_POLICY': 'passive', 'ROS_DOMAIN_ID': str(1 + os.getpid() % 100)}
    rows = {}
    for milliseconds in options.round_trips:
        delay = milliseconds / 2000
        rows[f'{milliseconds:g}'] = {'rrto': rrto_row(options, delay, environment),
                                     **{f'rgpu {way}': row for way, row in rgpu_rows(
                                         options, delay, environment).items()}}
        print(milliseconds, rows[f'{milliseconds:g}'], file=sys.stderr, flush=True)
    print(json.dumps({'model': options.model, 'MB_per_s': options.rate, 'round_trip_ms': rows}))


if __name__ == '__main__':
    main()
