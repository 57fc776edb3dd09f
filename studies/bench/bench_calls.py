"""Compares LOPInfer and RRTO with two rivals: openpi-client's websocket and LeRobot's gRPC.

With a rival, the robot simply calls a model on the server.

All contestants use the same model, the same images (uint8) and the same link. Robot
and server are processes on this machine, with one thread each. The rivals send an image
unchanged (`raw`) or as a JPEG; LOPInfer and RRTO get the image as a tensor. The bench emulates
a slow robot: the robot's part of the model and its JPEG encoding take `SLOWDOWN` times as long.
The link of the rivals is a TCP forwarder. LOPInfer and RRTO emulate the same rate, delay and
outages in their senders. Each rival needs its own Python environment. Two variables contain
the paths of the Python programs in these environments:

    python -m venv build/openpi && build/openpi/bin/pip install -r calls/openpi.txt
    python -m venv build/lerobot && build/lerobot/bin/pip install -r ROS2_WS/.../rivals/lerobot.txt
    OPENPI_PYTHON=build/openpi/bin/python LEROBOT_PYTHON=build/lerobot/bin/python \
        python bench_calls.py [--outages] --out runs.jsonl

If neither variable is set, the bench measures nothing. It prints one JSON line for each
model, link and contestant:

- median and 95th percentile of ``--count`` inferences, one after the other, measured
  after the contestant has settled
- bytes up and down per inference. They include the framing of websocket and gRPC, but
  not that of TCP and DDS
- `cold_s`, `cold_with_server_s`: time from the start of the client's process to the
  first result, and to the first result with the server. When the client starts, the server
  already runs and has the weights; an earlier client has sent the weights to the servers of
  LOPInfer and RRTO

With ``--outages``, an inference begins 0.1 s after the start of the previous inference, or when
the previous inference ends, if that is later. A tick of a control loop at 10 Hz is starved if no
result has come since the previous tick.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fleet_env.links.trace import LinkTrace, write_trace
from lopinfer_node.cli.rig import SERVER, private_domain
from PIL import Image
from rrto_bridge.cli.run import in_domain
from rrto_bridge.protocol.discovery import find_server
from sklearn.datasets import load_sample_image

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / 'calls'), str(HERE.parents[1] / 'testing')]
from loop import jpeg, picture  # noqa: E402
from our_side import model_of, tensors  # noqa: E402
from tcp_link import (  # noqa: E402
    DOWN,
    OUTAGES,
    SECONDS,
    UP,
    Forwarder,
    Output,
    after_the_robot,
    its_own,
    process,
    with_outages,
)

SLOWDOWN = 3.0
DELAY = 0.002        # delay of the link in each direction, in seconds
RATE = 10            # rate of the control loop, in Hz
# Maps a model to the number of cameras, and the rows and columns of their pictures.
SIDES = {'resnet50': (1, 224, 224), 'resnet18': (1, 224, 224), 'mobilenet_v3_small': (1, 224, 224),
         'vgg11_bn': (1, 224, 224), 'fcn_resnet50': (1, 128, 128), 'act': (2, 480, 640)}
IMAGES = 16
READY = 240.0        # seconds within which a contestant must have a result
ALONE, LOPINFER, RRTO = 'robot alone', 'LOPInfer', 'RRTO'
LOCAL = 'RRTO, on_loss local'
RIVALS = {f'{name} {form}': (f'{name}_side.py', variable, form)
          for name, variable in (('openpi', 'OPENPI_PYTHON'), ('grpc', 'LEROBOT_PYTHON'))
          for form in ('raw', 'jpeg')}
WHO = (ALONE, *RIVALS, LOPINFER, RRTO)
# Seconds between the first result with the server and the measurement. In this time,
# LOPInfer measures and tries plans, and RRTO finds the sequence.
SETTLE = {LOPINFER: 20.0, RRTO: 6.0}
# Seconds between a contestant's start and the measured run. In this time, the contestant settles.
LEAD = {LOPINFER: 45.0, RRTO: 30.0, LOCAL: 30.0}

# a client's output, its forwarder (or None), and the monotonic time at which the client started
Client = tuple[Output, Forwarder | None, float]
Start = Callable[[float], Any]  # period of inferences in seconds -> context in which a client runs


# -- data and contestants --------------------------------------------------------------------------

def prepare(name: str, folder: Path, camera: bool) -> dict[str, Any]:
    """Write pictures, the model and its outputs; return sizes and the effect of JPEG.

    The effect of JPEG is how much the model's output changes if pictures are sent as JPEGs. There
    is none with ``camera``: cameras give JPEGs, from which all contestants compute.
    """
    cameras, *side = SIDES[name]
    images = np.stack([[crop(cameras * k + c, *side) for c in range(cameras)]
                       for k in range(IMAGES)])
    files = [[jpeg(image) for image in row] for row in images]
    if camera:
        for k, row in enumerate(files):
            for c, data in enumerate(row):
                (folder / f'{k}_{c}.jpg').write_bytes(data)
    model = model_of(name)
    np.save(folder / 'images.npy', images)
    torch.save(model, folder / 'model.pt')
    torch.export.save(torch.export.export(model, tuple(tensors([*images[0]]))),
                      folder / 'model.pt2')
    with torch.no_grad():
        plain, lossy = (np.concatenate([model(*tensors([picture(data) for data in row])).numpy()
                                        for row in rows]) for rows in (images, files))
    want, other = (lossy, lossy) if camera else (plain, lossy)
    np.save(folder / 'outputs.npy', want[:, None])
    rms = float(np.sqrt(np.square(other - want).mean()))
    return {'image_bytes': images[0].nbytes, 'output_bytes': want[0].nbytes,
            'weights_mbyte': round(sum(p.nbytes for p in model.parameters()) / 1e6, 1),
            'jpeg_bytes': round(np.mean([sum(map(len, row)) for row in files])),
            'jpeg_error': float(f'{(largest(other - want) / largest(want)).max():.2g}'),
            'jpeg_rms_of_images': round(rms / float(np.std(want, 0).mean()), 3)}


def largest(outputs: np.ndarray) -> np.ndarray:
    return np.abs(outputs).reshape(len(outputs), -1).max(1)


def crop(number: int, rows: int, columns: int) -> np.ndarray:
    """Return a part of one of scikit-learn's two photographs: uint8 (rows, columns, 3)."""
    photo = Image.fromarray(load_sample_image(('china.jpg', 'flower.jpg')[number % 2]))
    # Shrink the photograph, because this removes the artefacts of its own JPEG compression.
    scale = 1.3 * rows / photo.height
    photo = photo.resize((round(photo.width * scale), round(photo.height * scale)))
    left = (photo.width - columns) * (number % IMAGES) // IMAGES
    top = (photo.height - rows) * (number * 5 % IMAGES) // IMAGES
    return np.asarray(photo.crop((left, top, left + columns, top + rows)))


@contextmanager
def client_of(command: list[str], environment: dict[str, str], forwarder: Forwarder | None = None,
              folder: Path | None = None) -> Iterator[Client]:
    began = time.monotonic()
    with process(*command, env=environment, stdout=subprocess.PIPE, cwd=folder) as started:
        yield Output(started), forwarder, began


@contextmanager
def rival(who: str, folder: Path, trace: LinkTrace | None) -> Iterator[Start]:
    """Run a rival's server; yield a function that starts the rival's client.

    If ``trace`` is None, the link is not limited.
    """
    side, variable, form = RIVALS[who]
    port = str(20000 + os.getpid() % 20000)
    program = (os.path.abspath(os.environ[variable]), str(HERE / 'calls' / side))
    with process(*program, 'server', port, str(folder), env=its_own(1), stdout=subprocess.PIPE,
                 # LeRobot logs into this folder
                 cwd=folder, preexec_fn=after_the_robot) as serving:
        Output(serving).until(lambda lines: 'serving' in lines, READY, f'the server of {who}')
        forwarder = Forwarder(int(port), DELAY)

        def start(period: float) -> Any:
            if trace is not None:
                forwarder.begin(trace, time.monotonic())
            return client_of([*program, 'client', str(forwarder.port), str(folder), form,
                              str(SLOWDOWN), str(period)], its_own(1), forwarder, folder)
        yield start


@contextmanager
def ours(who: str, folder: Path, trace: LinkTrace) -> Iterator[Start]:
    """Run the server of LOPInfer or RRTO and send it the weights; yield a function for clients.

    The yielded function starts a client. The link's trace begins when the server starts.
    """
    write_trace(folder / 'link.txt', trace)
    epoch, path = time.time(), folder / 'link.txt'
    side = [sys.executable, str(HERE / 'calls/our_side.py')]
    here = {**os.environ, 'OMP_NUM_THREADS': '1'}
    given = {'threads': 1, 'link.trace': path, 'link.latency': DELAY, 'link_epoch': epoch,
             'directory': folder}
    name = f'calls_{os.getpid()}'
    if who == LOPINFER:
        server = ['-c', SERVER, '--ros-args', '-r', '__ns:=/lopinfer']
    else:
        server, given['name'] = ['-m', 'rrto_bridge.server.main', '--ros-args'], name

    def client(period: float, link: str, delay: float) -> Any:
        if who == LOPINFER:
            return client_of([*side, 'lopinfer', str(folder), str(SLOWDOWN), str(period), link,
                              str(delay), str(epoch)], here)
        emulated = ['--link-trace', link] if link else []
        return client_of([sys.executable, '-m', 'rrto_bridge.cli.main', 'run', '--server', name,
                          '--on-loss', 'local' if who == LOCAL else 'error', *emulated,
                          '--link-latency', str(delay), '--link-epoch', str(epoch), '--',
                          *side, 'rrto', str(folder), str(SLOWDOWN), str(period)], here)

    with process(sys.executable, *server, '--log-level', 'warn',
                 *(part for key, value in given.items() for part in ('-p', f'{key}:={value}')),
                 env=here, preexec_fn=after_the_robot):
        if who != LOPINFER:
            with in_domain() as node:
                find_server(node, READY, name)
        with client(0.0, '', 0.0) as (output, _, _):   # this client sends the weights to the server
            output.until(with_server, READY, f'the first client of {who}')
        yield lambda period: client(period, str(path), DELAY)


@contextmanager
def robot(folder: Path) -> Iterator[Start]:
    yield lambda period: client_of(
        [sys.executable, str(HERE / 'calls/our_side.py'), 'alone', str(folder), str(SLOWDOWN),
         str(period)], {**os.environ, 'OMP_NUM_THREADS': '1'})


def started(who: str, folder: Path, trace: LinkTrace) -> Any:
    return robot(folder) if who == ALONE else \
        rival(who, folder, trace) if who in RIVALS else ours(who, folder, trace)


# -- measuring -------------------------------------------------------------------------------------

def numbers(lines: list[str]) -> np.ndarray:
    """Return what the client has printed: one row for each inference, see loop.py."""
    return np.array([[float(part) for part in line.split()] for line in lines
                     if line and line[0].isdigit()]).reshape(-1, 7)


def with_server(lines: list[str]) -> bool:
    return bool(numbers(lines)[:, 2].any())


def steady(who: str, folder: Path, trace: LinkTrace, count: int) -> dict[str, Any]:
    """Measure inferences that run one after the other."""
    with started(who, folder, trace) as start, start(0.0) as (output, forwarder, began):
        output.until(len, READY, f'the client of {who}')
        turns = forwarder.turns if forwarder else 0
        output.until(len if who == ALONE else with_server, READY, f'{who} with the server')
        time.sleep(SETTLE.get(who, 2.0))
        now = len(output.lines)   # wait until the present inference ends
        output.until(lambda lines: len(lines) > now, READY, f'{who}: one result')
        first, before = len(output.lines), list(forwarder.bytes) if forwarder else []
        output.until(lambda lines: len(lines) >= first + count, READY, f'{who}: {count} results')
        after = list(forwarder.bytes) if forwarder else []
        rows = numbers(output.lines)
    ms = rows[first:first + count, 1] * 1e3
    sent = np.diff(rows[[first - 1, -1]][:, 3:5], axis=0)[0] if not forwarder else \
        np.subtract(after, before)
    served = rows[rows[:, 2] > 0]
    return {'median_ms': round(float(np.median(ms)), 1),
            'p95_ms': round(float(np.percentile(ms, 95)), 1),
            'with_server': int(rows[first:first + count, 2].sum()),
            'kb_up': round(sent[UP] / (len(rows) - first) / 1e3, 1),
            'kb_down': round(sent[DOWN] / (len(rows) - first) / 1e3, 1),
            'cold_s': round(rows[0, 0] - began, 2),
            'cold_with_server_s': round(served[0, 0] - began, 2) if len(served) else None,
            'cold_round_trips': turns or int(served[0, 5]) if len(served) else 0,
            'error': float(f'{rows[:, 6].max():.2g}')}


def disturbed(who: str, folder: Path, trace: LinkTrace) -> dict[str, Any]:
    """Measure a control loop over a link with outages."""
    with ExitStack() as held:
        begin = time.monotonic() + LEAD.get(who, 0.0)
        start = held.enter_context(
            ours(who, folder, with_outages(trace, LEAD[who])) if who in LEAD else
            rival(who, folder, None) if who in RIVALS else robot(folder))
        output, forwarder, _ = held.enter_context(start(1 / RATE))
        output.until(with_server if who != ALONE else len, READY, f'{who} with the server')
        if who not in LEAD:
            time.sleep(2.0)
            begin = time.monotonic()
        elif time.monotonic() > begin:
            raise SystemExit(f'{who} is not ready after {LEAD[who]:g} s')
        if forwarder:
            forwarder.begin(with_outages(trace), begin)
        time.sleep(max(0.0, begin + SECONDS - time.monotonic()))
        rows, ended = numbers(output.lines), [x for x in output.lines if x.startswith('ended')]
    return {**control(rows[:, 0] - begin, rows[:, 2] > 0), **({'ended': ended[0]} if ended else {}),
            'error': float(f'{rows[:, 6].max():.2g}')}


def control(came: np.ndarray, shared: np.ndarray) -> dict[str, Any]:
    """Return the number of starved ticks, and how soon results come again after each outage.

    The numbers are for the whole run and for each of its parts. The first part ends at the start of
    the first outage. Each further part begins at the start of an outage and ends at the start of
    the next outage; the last part ends with the run. ``came``: times of the results, in seconds
    since the start of the run. ``shared``: for each result, whether the server helped to compute
    it.
    """
    ticks = np.arange(1, round(SECONDS * RATE) + 1) / RATE
    fresh = np.diff(np.searchsorted(np.sort(came), [0.0, *ticks], side='right')) > 0
    edges = [0.0, *(at for at, _ in OUTAGES), SECONDS]
    names = ['before', *(f'{last:g} s' for _, last in OUTAGES)]
    inside = np.array([((at < ticks) & (ticks <= at + last)) for at, last in OUTAGES])
    found: dict[str, Any] = {'starved': int((~fresh).sum()), 'ticks': len(ticks), 'outages': {}}
    for k, name in enumerate(names):
        part = (edges[k] < ticks) & (ticks <= edges[k + 1])
        row = {'starved': int((~fresh[part]).sum()), 'ticks': int(part.sum())}
        if k:
            at, last = OUTAGES[k - 1]
            row |= {'starved_inside': int((~fresh[inside[k - 1]]).sum()),
                    'goes_on_s': after(came, at + last, edges[k + 1]),
                    'with_server_s': after(came[shared], at + last, edges[k + 1])}
        found['outages'][name] = row
    return found


def after(came: np.ndarray, end: float, limit: float) -> float | None:
    """Return the seconds from ``end`` to the first result after ``end``.

    Return None if no result comes before ``limit``.
    """
    later = came[(came >= end) & (came < limit)]
    return round(float(later.min() - end), 2) if len(later) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', nargs='*', choices=SIDES)
    parser.add_argument('--rates', nargs='*', type=float, metavar='MB/S')
    parser.add_argument('--who', nargs='*', choices=[*WHO, LOCAL])
    parser.add_argument('--outages', action='store_true', help='count starved ticks instead')
    parser.add_argument('--camera', action='store_true',
                        help='cameras give JPEGs, which all contestants send as they are if they '
                             'can (RRTO sends the pixels)')
    parser.add_argument('--count', type=int, default=20)
    parser.add_argument('--out', type=Path,
                        help='file to which lines are appended; what it has is not measured again')
    options = parser.parse_args()
    variables = {variable for _, variable, _ in RIVALS.values()}
    if not variables & set(os.environ):
        print(f'not measured: none of {", ".join(sorted(variables))} names a Python',
              file=sys.stderr)
        return
    outages = options.outages
    torch.set_num_threads(1)
    for model in options.model or (['resnet18'] if outages else ['resnet50', 'vgg11_bn']):
        cases = [(rate, who) for rate in options.rates or ([8.0] if outages else [2.0, 8.0, 40.0])
                 for who in options.who or ([*WHO, LOCAL] if options.outages else WHO)]
        measure_all(model, cases, options)


def measure_all(model: str, cases: list[tuple[float, str]], options: argparse.Namespace) -> None:
    """Measure each case that is not in the file `--out` yet, and print the line of the case."""
    path: Path | None = options.out
    lines = path.read_text().splitlines() if path and path.exists() else []
    known = {json.loads(line)['bench'] for line in lines}
    with tempfile.TemporaryDirectory() as name, private_domain():
        folder = Path(name)
        said = prepare(model, folder, options.camera)
        for rate, who in cases:
            title = f'calls: {model}, {rate:g} MB/s, {who}' + options.outages * ', outages' \
                + options.camera * ', camera'
            if title in known or options.camera and who.endswith(' jpeg'):
                continue
            if who in RIVALS and RIVALS[who][1] not in os.environ:
                print(f'left out: {who}, because {RIVALS[who][1]} names no Python',
                      file=sys.stderr)
                continue
            trace = LinkTrace([0.0], [rate * 8])
            figures = disturbed(who, folder, trace) if options.outages else \
                steady(who, folder, trace, options.count)
            found = json.dumps({'bench': title, **said, **figures})
            print(found, flush=True)
            if path:
                with path.open('a') as file:
                    file.write(found + '\n')


if __name__ == '__main__':
    main()
