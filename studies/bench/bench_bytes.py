"""What lossless codecs save on a link, and what they cost: tensors alone, LOPInfer and RRTO.

`bench_bytes.py tensors` prints a JSON line for each tensor: the share of its bytes that crosses the
link, and the milliseconds of encoding and decoding on one thread, beside zlib and a copy in memory.
The tensors are two photographs of scikit-learn, also with sensor noise, CIFAR-10 where
ROG_DATA_DIR has it, a rendered scene, and what layers of ResNet-50 give for a photograph.

`bench_bytes.py inference [--models M ...] [--rates MB/s ...] [--slowdown X]` prints, for each model
and rate, the median seconds of an inference on a photograph: LOPInfer with the server alone and
with shared plans, and an unmodified program under RRTO, each with tensors as they are (`raw`) and
encoded, in turns; `robot_alone` is the sum of its operators. Robot and server have one thread each,
the robot is slowed; the link is emulated, 2 ms each way.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from fleet_compute import inlets
from fleet_env.settings.fleet import ReachConfig
from fleet_env.vision import import_torchvision
from fleet_ros.environment import dds_environment
from lopinfer_node.cli import rig
from lopinfer_node.model.traced import trace
from lopinfer_node.runtime.measure import measure
from PIL import Image
from sklearn.datasets import load_sample_image

MEAN, STD = torch.tensor([.485, .456, .406]), torch.tensor([.229, .224, .225])
DELAY = 0.002
AS_THEY_ARE = 'import fleet_compute.inlets as i; i.LEAST = 1 << 62; '

PROGRAM = '''
import json, statistics, sys, time, torch
from fleet_env.vision import import_torchvision
name, path, count = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
model = import_torchvision().models.get_model(name, weights=None).eval()
x = torch.load(path)
with torch.no_grad():
    want = model(x)
    model, taken = model.to('cuda'), []
    for _ in range(int(count)):
        began = time.perf_counter()
        y = model(x.to('cuda')).cpu()
        taken.append(time.perf_counter() - began)
assert torch.allclose(y, want, rtol=1e-4, atol=1e-4)
print(json.dumps({'taken': taken}))
'''


def photograph(name='china.jpg', side=224):
    return np.array(Image.fromarray(load_sample_image(name)).resize((side, side)))


def normalised(pixels):
    return ((torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255 - MEAN.view(3, 1, 1))
            / STD.view(3, 1, 1)).contiguous()


def rendered(side=256):
    """Return a scene of plain shapes with shading, uint8."""
    y, x = np.mgrid[:side, :side] / side
    scene = np.stack([60 + 80 * y, 90 + 60 * y, 140 - 40 * y], -1)
    ball = (x - .4) ** 2 + (y - .55) ** 2 < .05
    scene[ball] = (np.array([200, 60, 40]) * (1 - ((x - .3) ** 2 + (y - .4) ** 2))[..., None])[ball]
    scene[(x > .6) & (x < .9) & (y > .3) & (y < .8)] = 30, 160, 90
    return scene.astype(np.uint8)


def tensors():
    for name in ('china.jpg', 'flower.jpg'):
        whole = load_sample_image(name)
        noise = np.random.default_rng(0).normal(0, 2, whole.shape)
        yield f'{name}, uint8', torch.from_numpy(whole)
        yield f'{name} with noise, uint8', torch.from_numpy(
            (whole + noise).clip(0, 255).astype(np.uint8))
        yield f'{name}, normalised float32', normalised(photograph(name))
        yield f'{name}, normalised bfloat16', normalised(photograph(name)).bfloat16()
    yield 'rendered scene, uint8', torch.from_numpy(rendered())
    yield 'rendered scene, normalised float32', normalised(rendered())
    if (folder := os.environ.get('ROG_DATA_DIR')):
        for path in sorted(Path(folder).rglob('data_batch_1'))[:1]:
            rows = np.frombuffer(path.read_bytes()[-30730000:], np.uint8)[:64 * 3072]
            yield 'CIFAR-10, uint8, 64 pictures', torch.from_numpy(rows.reshape(64, 3, 32, 32))
    torch.manual_seed(0)
    model = import_torchvision().models.resnet50(weights=None).eval()
    x = normalised(photograph())
    with torch.no_grad():
        for name in ('conv1', 'bn1', 'relu', 'maxpool', 'layer1', 'layer2', 'layer3', 'layer4'):
            x = getattr(model, name)(x)
            yield f'ResNet-50 after {name}, float32', x


def timed(function, *arguments):
    taken = []
    for _ in range(9):
        began = time.perf_counter()
        result = function(*arguments)
        taken.append(time.perf_counter() - began)
    return result, round(statistics.median(taken) * 1e3, 3)


def change_rows():
    """Print what the second of two pictures of a camera that stands still takes."""
    for name in ('china.jpg', 'flower.jpg'):
        whole = load_sample_image(name)
        for noise in (0, 1, 2):
            random = np.random.default_rng(0)
            one, two = ((whole + random.normal(0, noise, whole.shape)).clip(0, 255)
                        .astype(np.uint8).reshape(-1) for _ in range(2))
            link, layout = inlets.Inlets(lambda: 4e6, changes=True), inlets.layout_of(whole.shape)
            alone = len(link.encoded('x', one, layout))
            link.note(1)
            link.encoded('x', two, layout)      # compares codecs
            sent, encoding = timed(link.encoded, 'x', two, layout)
            back, decoding = timed(inlets.decode, sent, two.nbytes, lambda number, one=one: one)
            assert back.tobytes() == two.tobytes()
            print(json.dumps({
                'tensor': f'{name}, the same scene again, noise {noise}', 'bytes': two.nbytes,
                'change': sent[0] == inlets.CHANGE, 'share': round(len(sent) / two.nbytes, 3),
                'share_of_the_first': round(alone / two.nbytes, 3), 'encode_ms': encoding,
                'decode_ms': decoding}), flush=True)


def tensor_rows():
    for name, tensor in tensors():
        elements = inlets.elements_of(tensor.contiguous().reshape(-1).view(torch.uint8).numpy(),
                                      tensor.dtype.itemsize)
        inlet, layout = inlets.Inlet(), inlets.layout_of(tensor.shape)
        inlet.expects(elements, layout, 4e6)
        sent, encoding = timed(inlet.encoded, elements, layout, 4e6)
        coded = len(sent) < elements.nbytes
        back, decoding = timed(inlets.decode, sent, elements.nbytes) if coded else (elements, 0.0)
        assert back.tobytes() == elements.tobytes()
        packed, zipping = timed(zlib.compress, elements.tobytes(), 1)
        _, copying = timed(elements.copy)
        print(json.dumps({
            'tensor': name, 'bytes': elements.nbytes, 'codec': inlets.NAMES.get(inlet.codec, 'raw'),
            'share': round(len(sent) / elements.nbytes, 3), 'encode_ms': encoding,
            'decode_ms': decoding, 'zlib_share': round(len(packed) / elements.nbytes, 3),
            'zlib_ms': zipping, 'copy_ms': copying}), flush=True)


def shared(model, x, rate, options, raw, profile, folder):
    """Return the median seconds of an inference with the server alone and with shared plans."""
    server, least = rig.SERVER, inlets.LEAST
    if raw:
        rig.SERVER, inlets.LEAST = AS_THEY_ARE + server, 1 << 62
    try:
        with rig.Rig(model, x, rate * 1e6, DELAY, folder, options.slowdown) as made:
            return {method: round(made.measure(method, profile, options.requests, DELAY).median, 4)
                    for method in ('server-only', 'lopinfer')}
    finally:
        rig.SERVER, inlets.LEAST = server, least


def offloaded(name, picture, rate, requests, raw):
    """Return the median seconds of an inference of an unmodified program under RRTO."""
    link = {'rate': rate * 8, 'latency': DELAY}
    server = subprocess.Popen(
        [sys.executable, '-m', 'rrto_bridge.server.main', '--ros-args', '-p', 'name:=bench', '-p',
         f'directory:={Path(picture).parent}', '-p', 'device:=cpu', '-p', 'threads:=1',
         *(a for k, v in link.items() for a in ('-p', f'link.{k}:={float(v)}'))])
    try:
        done = subprocess.run(
            [sys.executable, '-m', 'rrto_bridge.cli.main', 'run', '--server', 'bench',
             *(a for k, v in link.items() for a in (f'--link-{k}', str(v))), '--', sys.executable,
             '-c', (AS_THEY_ARE if raw else '') + PROGRAM, name, picture, str(requests + 12)],
            stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    finally:
        server.terminate()
        server.wait()
    return round(statistics.median(json.loads(done.stdout)['taken'][-requests:]), 4)


def inference_rows(options):
    torch.set_num_threads(1)
    x = normalised(photograph())
    with rig.private_domain(), tempfile.TemporaryDirectory() as folder:
        picture = str(Path(folder) / 'picture.pt')
        torch.save(x, picture)
        for name in options.models:
            torch.manual_seed(0)
            model = import_torchvision().models.get_model(name, weights=None).eval()
            profile = measure(trace(model, x), slowdown=options.slowdown)
            for rate in options.rates:
                row = {'model': name, 'MB_per_s': rate,
                       'robot_alone': round(float(profile.whole.sum()), 4),
                       'load': round(os.getloadavg()[0], 1)}
                for what, raw in (('raw', True), ('encoded', False)):
                    row[what] = {**shared(model, x, rate, options, raw, profile,
                                          Path(folder) / 'models'),
                                 'rrto': offloaded(name, picture, rate, options.requests, raw)}
                print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=['tensors', 'inference'])
    parser.add_argument('--models', nargs='+', default=['resnet50', 'vgg11_bn'])
    parser.add_argument('--rates', nargs='+', type=float, default=[1.0, 2.0, 4.0, 8.0, 40.0],
                        help='MB/s in each direction')
    parser.add_argument('--requests', type=int, default=12)
    parser.add_argument('--slowdown', type=float, default=3.0,
                        help="factor on the time that LOPInfer's robot computes")
    options = parser.parse_args()
    os.environ |= {**dds_environment(ReachConfig()), 'OMP_NUM_THREADS': '1',
                   'OMP_WAIT_POLICY': 'passive'}
    torch.set_num_threads(1)
    if options.what == 'tensors':
        tensor_rows()
        change_rows()
    else:
        inference_rows(options)


if __name__ == '__main__':
    main()
