"""RRTO beside rgpu 0.1.1, another PyTorch device over the network, in one run.

Both run the same inference on a server of this machine with one thread: a model of torchvision, an
ACT policy (`act`), or a decoder like GPT-2 that makes 16 tokens with a key/value cache and reads
each token (`gpt2`) or only the last result (`gpt2-late`). The link to RRTO's server is emulated by
RRTO itself, that to rgpu's by a TCP proxy with the same delay and rate in each direction. The
program prints one JSON line: for each round trip and each way, seconds from the start of the
program to the first result, of the first inference, median and largest of the later ones, and the
largest difference from the model on this machine. Without rgpu the line says so.

With `--outage` it prints instead what an outage of 5 s in the middle of inferences does, at the
first of the round trips: results during it (`during`) and wrong ones, the longest inference, the
seconds from its end to the first result, how the program ended. `stall`: the link carries nothing;
`cut`: also, TCP connections break (RRTO has none); `killed`: the server is killed, and started
again at the end.

`bench_rgpu.py [--model M] [--round-trips MS ...] [--rate MB/s] [--inferences N] [--outage [KIND
...]]`. It needs PyTorch 2.14 or newer and rgpu: `.versions/2.14/bin/python` of `make versions`,
after `.versions/2.14/bin/python -m pip install --no-deps rgpu==0.1.1`.
"""

import argparse
import asyncio
import contextlib
import importlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment

TOKENS = 16
OUTAGE = 5.0
BEFORE, AFTER = 50.0, 15.0      # s from the server's start to the outage; s from its end to the end


def decoder():
    """Return a decoder like GPT-2: 4 blocks of width 256, 8192 tokens, a key/value cache."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads, self.one, self.two = heads, nn.LayerNorm(width), nn.LayerNorm(width)
            self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, past):
            query, key, value = (y.unflatten(2, (self.heads, -1)).transpose(1, 2)
                                 for y in self.into(self.one(x)).chunk(3, 2))
            if past is not None:
                key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
            seen = nn.functional.scaled_dot_product_attention(query, key, value,
                                                              is_causal=past is None)
            x = x + self.out(seen.transpose(1, 2).flatten(2))
            return x + self.back(nn.functional.gelu(self.wide(self.two(x)))), (key, value)

    class Decoder(nn.Module):
        def __init__(self, width=256, heads=4, blocks=4, words=8192, longest=128):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
            self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

        def forward(self, tokens, cache=None):
            begin = 0 if cache is None else cache[0][0].shape[2]
            x = self.words(tokens) + self.places.weight[begin:begin + tokens.shape[1]]
            kept = []
            for k, block in enumerate(self.blocks):
                x, own = block(x, None if cache is None else cache[k])
                kept.append(own)
            return self.head(self.norm(x[:, -1:])).argmax(-1), kept
    return Decoder()


def decoded(run, prompt, read):
    """Return the tokens that follow the prompt; ``read``: look at each, as for an end token."""
    import torch
    token, cache, found = prompt, None, []
    for _ in range(TOKENS):
        token, cache = run(token, cache)
        found.append(token)
        if read and token.item() < 0:
            break
    return torch.cat(found, 1)


def task(name):
    """Return a model, its inputs, and a function that infers with the model and inputs."""
    import torch
    torch.manual_seed(0)
    if name.startswith('gpt2'):
        return decoder().eval(), [torch.randint(8192, (1, 8))], \
            lambda run, prompt: decoded(run, prompt, name == 'gpt2')
    if name == 'act':
        sys.path.append(str(Path(__file__).parents[2] / 'fleet_policy' / 'bench'))
        import act
        images = [torch.randint(256, (1, 3, act.HEIGHT, act.WIDTH), dtype=torch.uint8)
                  for _ in act.CAMERAS]
        return act.Act().eval(), [*images, torch.randn(1, act.JOINTS)], \
            lambda run, *inputs: run(*inputs)
    from fleet_env.vision import import_torchvision
    return import_torchvision().models.get_model(name, weights=None).eval(), \
        [torch.randn(1, 3, 224, 224)], lambda run, x: run(x)


def program(options):
    """Infer on the device; print a JSON line per inference: when it began and ended, and its error.

    The first line is when the program began.
    """
    began = time.time()
    import torch
    torch.set_num_threads(1)
    if options.program == 'rgpu':
        importlib.import_module('rgpu')
    model, inputs, infer = task(options.model)
    with torch.no_grad():
        want = infer(model, *inputs).float()
        print(json.dumps(began), flush=True)
        model = model.to(options.program)
        run = torch.compile(model, backend='rgpu') if options.compiled else model
        count = 0
        while count < options.inferences and time.time() < options.until:
            began = time.time()
            got = infer(run, *(x.to(options.program) for x in inputs)).cpu().float()
            error = float((got - want).abs().max() / want.abs().max())
            print(json.dumps([began, time.time(), error]), flush=True)
            count += 1


class Proxy:
    """Forwards TCP connections to a port, with a delay and a rate in each direction."""

    def __init__(self, port, delay, rate):
        self.to, self.delay, self.rate = port, delay, rate
        self.stalled = 0.0, 0.0     # from and to when it carries nothing, wall-clock time
        self.cut = False            # whether connections break then
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
        if self.cut and self._left():
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection('127.0.0.1', self.to)
        except OSError:     # the server is dead
            writer.transport.abort()
            return
        ways = asyncio.gather(self._carry(reader, there[1]), self._carry(there[0], writer))
        if self.cut and (left := self.stalled[0] - time.time()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(ways), left)
            ways.cancel()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await ways
        for one in (writer, there[1]):      # also if the other end was reset
            one.transport.abort()

    def _left(self):
        """Return for how many seconds more it carries nothing."""
        now = time.time()
        return self.stalled[1] - now if self.stalled[0] <= now < self.stalled[1] else 0.0

    async def _carry(self, reader, writer):
        queue, free = asyncio.Queue(), 0.0

        async def deliver():
            while (entry := await queue.get()) is not None:
                at, data = entry
                await asyncio.sleep(max(0.0, at - self.loop.time()))
                while left := self._left():
                    await asyncio.sleep(left)
                writer.write(data)
            writer.close()
        task = asyncio.ensure_future(deliver())
        while data := await reader.read(16384):
            free = max(free, self.loop.time()) + len(data) / self.rate
            queue.put_nowait((free + self.delay, data))
            await asyncio.sleep(max(0.0, free - self.loop.time() - 0.01))   # a full link holds back
        queue.put_nowait(None)
        await task


def wait_for(port):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(('127.0.0.1', port)).close()
            return
        time.sleep(0.1)
    raise SystemExit('the server of rgpu does not start')


class Rgpu:
    """A server of rgpu, and the command of a program that uses it."""

    def __init__(self, options, delay, environment, way, outage):
        self.port = 9800 + os.getpid() % 200
        self.environment = environment
        proxy = Proxy(self.port, delay, options.rate * 1e6)
        self.there = {**environment, 'RGPU_OPSERVER': f'127.0.0.1:{proxy.port}'}
        self.command = [sys.executable, __file__, '--program', 'rgpu',
                        *['--compiled'] * (way == 'compiled')]
        if outage and outage[1] != 'killed':
            proxy.stalled, proxy.cut = (outage[0], outage[0] + OUTAGE), outage[1] == 'cut'
        self.start()

    def start(self):
        self.server = subprocess.Popen([sys.executable, '-m', 'rgpu.server', '--device', 'cpu',
                                        '--port', str(self.port)], env=self.environment)
        wait_for(self.port)


class Rrto:
    """A server of RRTO, and the command of a program that uses it."""

    def __init__(self, options, delay, environment, way, outage):
        rate = options.rate * 8
        link = {'rate': rate, 'latency': delay}
        if outage and outage[1] != 'killed':
            self.trace = tempfile.NamedTemporaryFile('w', suffix='.csv')     # noqa: SIM115
            self.trace.write(f'0 {rate}\n{BEFORE} 0\n{BEFORE + OUTAGE} {rate}\n1000 {rate}\n')
            self.trace.flush()
            link = {'trace': self.trace.name, 'latency': delay}
        epoch = outage[0] - BEFORE if outage else 0.0
        self.there = self.environment = environment
        self.folder = tempfile.TemporaryDirectory()      # noqa: SIM115
        self.serving = [
            sys.executable, '-m', 'rrto_bridge.server.main', '--ros-args', '-p', 'name:=bench',
            '-p', f'directory:={self.folder.name}', '-p', 'device:=cpu', '-p', 'threads:=1', '-p',
            f'link_epoch:={epoch}', *(
                a for k, v in link.items() for a in ('-p', f'link.{k}:={v}'))]
        self.command = [
            sys.executable, '-m', 'rrto_bridge.cli.main', 'run', '--server', 'bench', '--on-loss',
            way, '--link-epoch', str(epoch),
            *(a for k, v in link.items() for a in (f'--link-{k}', str(v))), '--', sys.executable,
            __file__, '--program', 'cuda']
        self.start()

    def start(self):
        self.server = subprocess.Popen(self.serving, env=self.environment)


@contextlib.contextmanager
def running(kind, options, *more, until=1e12):
    """Start a server and a program; yield the server, the program and when it was started."""
    server = kind(options, *more)
    if kind is Rrto:
        time.sleep(4)
    began = time.time()
    one = subprocess.Popen([*server.command, '--model', options.model, '--inferences',
                            str(options.inferences if until == 1e12 else 1 << 30), '--until',
                            str(until)], env=server.there, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE if until < 1e12 else None, text=True)
    try:
        yield server, one, began
    finally:
        one.kill()
        one.wait()
        server.server.terminate()
        server.server.wait()


def row(kind, options, delay, environment, way):
    with running(kind, options, delay, environment, way, None) as (_, one, began):
        try:
            out = one.communicate(timeout=options.limit)[0].splitlines()
        except subprocess.TimeoutExpired:
            return {'failed': f'not done after {options.limit:g} s'}
    if one.returncode or len(out) < 3:
        return {'failed': one.returncode}
    ready, first, *others = map(json.loads, out)
    # RRTO's search and rgpu's compiler have ended by then
    late = [end - begun for begun, end, _ in others[len(others) // 2:]]
    return {'ready_s': round(ready - began, 2), 'start_s': round(first[1] - began, 2),
            'first_s': round(first[1] - first[0], 3), 'median_s': round(statistics.median(late), 4),
            'most_s': round(max(late), 4), 'error': round(max(r[2] for r in (first, *others)), 8)}


def outage_row(kind, options, delay, environment, way, what):
    at = time.time() + BEFORE
    end = at + OUTAGE
    with running(kind, options, delay, environment, way, (at, what), until=end + AFTER) as (
            server, one, _):
        def strike():
            time.sleep(max(0.0, at - time.time()))
            server.server.kill()
            server.server.wait()
            time.sleep(max(0.0, end - time.time()))
            server.start()
        if what == 'killed':
            striking = threading.Thread(target=strike)
            striking.start()
        try:
            out, err = one.communicate(timeout=BEFORE + OUTAGE + AFTER + 100)
            code = one.returncode
        except subprocess.TimeoutExpired:
            one.kill()
            out, err = one.communicate()
            code = 'hangs'
        if what == 'killed':
            striking.join()
    rows = [json.loads(line) for line in out.splitlines()[1:]]
    before = [r[1] - r[0] for r in rows if r[1] < at][-5:]
    later = [r for r in rows if r[1] > end]
    return {'exit': code, 'inferences': len(rows), 'wrong': sum(r[2] > 1e-4 for r in rows),
            'before_s': before and round(statistics.median(before), 3),
            'during': sum(at + 1 < r[1] < end for r in rows),
            'longest_s': round(max(r[1] - r[0] for r in rows[5:]), 2) if rows[5:] else None,
            'first_after_s': round(later[0][1] - end, 2) if later else None,
            'last_s': round(statistics.median(r[1] - r[0] for r in later[-5:]), 3)
            if later else None, 'said': err.splitlines()[-1:]}


WAYS = {'rrto': (Rrto, 'error'), 'rgpu eager': (Rgpu, 'eager'), 'rgpu compiled': (Rgpu, 'compiled')}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--model', default='resnet18')
    parser.add_argument('--round-trips', type=float, nargs='+', default=[1, 10, 30, 150],
                        metavar='MS')
    parser.add_argument('--rate', type=float, default=4.0, help='MB/s in each direction')
    parser.add_argument('--inferences', type=int, default=24)
    parser.add_argument('--limit', type=float, default=300.0, help='s for one program')
    parser.add_argument('--outage', nargs='*', choices=['stall', 'cut', 'killed'])
    parser.add_argument('--program', help='device; the program itself')
    parser.add_argument('--compiled', action='store_true')
    parser.add_argument('--until', type=float)
    options = parser.parse_args()
    if options.program:
        program(options)
        return
    if importlib.util.find_spec('rgpu') is None:
        print(json.dumps({'skipped': 'rgpu is not installed'}))
        return
    environment = {**os.environ, **dds_environment(ReachConfig()), 'OMP_NUM_THREADS': '1',
                   'OMP_WAIT_POLICY': 'passive', 'ROS_DOMAIN_ID': str(1 + os.getpid() % 100)}
    if options.outage is not None:
        ways = {'rrto': (Rrto, 'error'), 'rrto, on-loss local': (Rrto, 'local'),
                **{k: v for k, v in WAYS.items() if k != 'rrto'}}
        rows = {}
        for what in options.outage or ('stall', 'cut', 'killed'):
            for name, (kind, way) in ways.items():
                if kind is Rgpu or what != 'cut':
                    rows[f'{what}, {name}'] = outage_row(
                        kind, options, options.round_trips[0] / 2000, environment, way, what)
                    print(what, name, rows[f'{what}, {name}'], file=sys.stderr, flush=True)
        print(json.dumps({'model': options.model, 'outage': rows}))
        return
    rows = {}
    for milliseconds in options.round_trips:
        rows[f'{milliseconds:g}'] = {
            name: row(kind, options, milliseconds / 2000, environment, way)
            for name, (kind, way) in WAYS.items()}
        print(milliseconds, rows[f'{milliseconds:g}'], file=sys.stderr, flush=True)
    print(json.dumps({'model': options.model, 'MB_per_s': options.rate, 'round_trip_ms': rows}))


if __name__ == '__main__':
    main()
