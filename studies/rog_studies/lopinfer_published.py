"""The published profiles of six models on a Jetson Xavier NX and an RTX 3080 (thesis 4.5).

A CSV file has one line per recorded call. The line holds the time of the whole call on both
machines (ms), the bytes of its result, the calls whose tensors it reads, the shape of its result,
and `local_dim`, the axis along which the authors divide the result. This module uses the columns as
follows:

- `excluded` calls (`dim`, shape queries, constants) make no tensor that depends on the input. They
  do not become operators; their time counts for the next operator.
- The authors' layer partition never cuts the model at `masked` calls. Most of these calls lie
  inside a block of branches. The model could be cut at the remaining `masked` calls, because only
  one tensor would cross the cut. So the column describes a limit of the authors' planner, and
  this module ignores it.
- `local_dim` is the width of the image (for AGRNav, of the voxel grid). Operators without this axis
  are not divided: fully connected layers, and KAPAO's detections after `view`, which mixes width
  and height.
- `__setitem__` lines have no shape. Such an operator makes the next version of the tensor to which
  it writes; later calls read only the latest version.
- Kernel sizes are not in the file. The four torchvision models have the kernels of torchvision.
  KAPAO is yolov5l6. Its `__getitem__` of stride 2 needs one column of each pair; this module
  assumes that it needs both. AGRNav has the kernels of LMSCNet. Its convolutions have size 3, with
  dilation 1, 2 and 3 in its head. Its transposed convolutions have size 6 if their stride is 2;
  otherwise their size equals their stride.

The file has only the time of a whole operator, not the time of a share of it. Therefore this module
splits the time into a fixed part and a part that is proportional to the share, with one constant
per machine: the seconds that PyTorch needs to launch an operator. The processor launches operators
ahead of the GPU, so operator i ends at F[i] = max(F[i-1], i * launch) + time[i]. The fixed part of
each operator is ``launch``. The proportional parts of the operators 0 to i add up to the smallest
F[j] - j * launch of all j >= i; with this minimum, no part is negative. At share 1 both parts add
up to the duration of the run. A network that waits for launches gains nothing from a smaller share.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from lopinfer_node.errors import ProfileError
from lopinfer_node.model import footprint
from lopinfer_node.model.footprint import Footprint
from lopinfer_node.model.graph import Graph, Kind, Node
from lopinfer_node.planning.profile import Profile

# Seconds per launch, fitted to the published mean latencies of the device alone. Computed and
# published latencies in ms: VGG 86.9 and 87, ConvNeXt 207 and 198, ResNet 87.5 and 87, DenseNet 73
# and 75, KAPAO 389 and 397, AGRNav 774 and 782. Without launches the sum of the times in the file
# would be too small (ResNet 65, DenseNet 55). A check: with this value, half of ResNet152's columns
# take 87.4 ms, as long as all columns. The authors also measured no gain: 90 ms for half of the
# columns, 85 ms for all columns.
DEVICE_LAUNCH = 170e-6
# Seconds per launch. With a larger value, the launches alone would take longer than the published
# times of the server (ResNet: 14.5 ms for 514 operators).
SERVER_LAUNCH = 28e-6
MACHINES = ('Jetson Xavier NX', 'RTX 3080')
_COLUMNS = ('op_name', 'device_ms', 'server_ms', 'out_bytes', 'input_from', 'out_shape0',
            'local_dim', 'excluded')


class Published(NamedTuple):
    """A model of the thesis: its graph, and its profiles on the robot and on the server."""

    graph: Graph
    device: Profile
    server: Profile


@dataclass(frozen=True)
class _Row:
    """One line of the published file that becomes a node of the graph.

    ``inputs``: numbers of the lines whose tensors this line reads; these lines are nodes as
    well.
    """

    line: int
    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    axis: int | None
    itemsize: int

    @property
    def extent(self) -> int:
        return 1 if self.axis is None else self.shape[self.axis]


def load(path: str | Path, device_launch: float = DEVICE_LAUNCH,
         server_launch: float = SERVER_LAUNCH, pictures: bool = False) -> Published:
    """Read one published profile, e.g. VGG19_BN.csv.

    :param device_launch: seconds that the robot's processor needs to launch one operator.
    :param server_launch: seconds that the server's processor needs to launch one operator.
    :param pictures: whether the model takes images as bytes and converts them to float32 itself,
        see `lopinfer_node.model.pictures`. The published inputs are float32.
    :raises ProfileError: the model is unknown, or the file is not as published.
    """
    path = Path(path)
    if path.stem not in _WINDOWS:
        raise ProfileError(f'{path}: kernel sizes are known for {", ".join(_WINDOWS)} only')
    lines = _lines(path)
    try:
        rows = _rows(lines)
        nodes = list(_nodes(rows, path.stem))
        if pictures:
            nodes = [replace(n, itemsize=1) if n.kind is Kind.INPUT else n for n in nodes]
        graph = Graph(nodes, path.stem)
        times = np.array([[float(r['device_ms']), float(r['server_ms'])] for r in lines]).T / 1e3
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ProfileError(f'{path}: not as published: {error!r}') from error
    kept = np.array([row.line for row in rows])
    launched = np.array([r['excluded'] != 'True' for r in lines]) & (times[0] > 0)
    names = tuple(node.name for node in graph.nodes)
    device, server = (
        Profile(graph.digest, path.stem, machine, '', names, *split(t, launched, launch, kept))
        for machine, t, launch in zip(MACHINES, times, (device_launch, server_launch), strict=True))
    return Published(graph, device, server)


def split(times: np.ndarray, launched: np.ndarray, launch: float, kept: np.ndarray
          ) -> tuple[np.ndarray, np.ndarray]:
    """Split the times of whole operators into a fixed part and a part per share.

    The text at the top of this module explains the method.

    :param times: (lines,) seconds.
    :param launched: (lines,) bool, which lines launch an operator.
    :param launch: seconds per launch.
    :param kept: (nodes,) numbers of the lines that are nodes of the graph; includes the last line.
    :returns: fixed and per_share, (nodes,) seconds.
    """
    issued = np.cumsum(launched) * launch
    # F[i] = max(F[i-1], issued[i]) + times[i], computed without a loop. At the end of line i, the
    # GPU has run without a gap since the line j <= i that maximises issued[j] - before[j].
    before = np.concatenate([[0.0], np.cumsum(times)[:-1]])
    ends = np.maximum.accumulate(issued - before) + before + times
    scaled = np.minimum.accumulate((ends - issued)[::-1])[::-1]
    return launch * launched[kept], np.maximum(np.diff(scaled[kept], prepend=0.0), 0.0)


def _lines(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline='', encoding='utf-8') as file:
            lines = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise ProfileError(f'{path}: cannot be read: {error}') from error
    if len(lines) < 3 or any(lines[0].get(c) is None for c in _COLUMNS):
        raise ProfileError(f'{path}: needs a header with {", ".join(_COLUMNS)} and three lines')
    return lines


def _rows(lines: list[dict[str, str]]) -> list[_Row]:
    """Return the lines that are not excluded.

    A `__setitem__` line makes a new version of the tensor to which it writes. If a line reads
    several versions of one tensor, only the latest of these is its input.
    """
    rows: dict[int, _Row] = {}
    written: dict[int, int] = {}      # __setitem__ line -> line of the tensor to which it writes
    for line, r in enumerate(lines):
        if r['excluded'] == 'True':
            continue
        sources = [int(s) for s in r['input_from'].split('|') if s]
        sources = [s for s in sources if s in rows]
        # line that made a tensor -> line of the latest version of this tensor that ``line`` reads
        latest: dict[int, int] = {}
        for source in sources:
            root = written.get(source, source)
            latest[root] = max(source, latest.get(root, source))
        if r['op_name'] == '__setitem__':
            written[line] = written.get(sources[0], sources[0])
            target = rows[written[line]]
            shape, axis, itemsize = target.shape, target.axis, target.itemsize
        else:
            shape = tuple(int(n) for n in r['out_shape0'].split('x'))
            # With fewer than four dimensions, the axis `local_dim` is not the width of the image.
            axis = int(r['local_dim']) if r['local_dim'] != 'None' and len(shape) > 3 else None
            itemsize = int(r['out_bytes']) // int(np.prod(shape))
        rows[line] = _Row(line, r['op_name'], tuple(sorted(latest.values())), shape, axis, itemsize)
    return list(rows.values())


def _nodes(rows: list[_Row], model: str) -> Iterator[Node]:
    at = {row.line: index for index, row in enumerate(rows)}
    for op, sizes in _WINDOWS[model].items():
        if len(sizes) != sum(row.op == op for row in rows):
            raise ValueError(f'{model} has {len(sizes)} of {op}')
    windows = {op: iter(sizes) for op, sizes in _WINDOWS[model].items()}
    for index, row in enumerate(rows):
        kind = {'_start': Kind.INPUT, '_end': Kind.OUTPUT}.get(row.op, Kind.OPERATOR)
        window = next(windows[row.op]) if row.op in windows else None
        inputs = [rows[at[line]] for line in row.inputs]
        footprints = tuple(_footprint(row, source, window) for source in inputs)
        whole = row.axis is None and any(source.extent > 1 for source in inputs)
        yield Node(index, f'{row.op}_{row.line}', kind, row.op, tuple(at[s] for s in row.inputs),
                   footprints, row.shape, row.itemsize, row.axis,
                   whole and kind is Kind.OPERATOR, f'{model}.csv, op_index {row.line}')


def _footprint(row: _Row, source: _Row, window: tuple[int, int] | None) -> Footprint:
    """Return which columns of ``source`` the columns of ``row`` need.

    :param window: (kernel, dilation); None for an operator without a window.
    """
    outputs, extent = row.extent, source.extent
    if row.axis is None or source.axis is None:
        return footprint.whole(outputs, extent)
    if row.op.startswith('conv_transpose'):
        stride = outputs // extent
        kernel = 6 if stride == 2 else stride
        return footprint.transposed_window(outputs, extent, kernel, stride, (kernel - stride) // 2)
    if window is not None:
        kernel, dilation = window
        padding = dilation * (kernel // 2) if kernel % 2 else 0
        stride = max(round(extent / outputs), 1)
        if (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 != outputs:
            raise ValueError(f'line {row.line}: no kernel of {kernel} makes {outputs} of {extent}')
        return footprint.window(outputs, extent, kernel, stride, padding, dilation)
    if outputs == extent:
        return footprint.identity(extent)
    if outputs == 2 * extent:
        return footprint.merged(outputs, 2, extent)       # interpolation with mode 'nearest'
    if extent == 2 * outputs:
        return footprint.divided(outputs, 2, extent)      # every second column
    raise ValueError(f'line {row.line}: {row.op} makes {outputs} columns of {extent}')


def _plain(*kernels: int) -> list[tuple[int, int]]:
    return [(kernel, 1) for kernel in kernels]


def _c3(bottlenecks: int) -> list[int]:
    """Return the kernel sizes of a C3 block of YOLOv5, in the order of its forward pass."""
    return [1] + [1, 3] * bottlenecks + [1, 1]


# Kernel sizes along the width, in the order of the calls; `_WINDOWS` has pairs (kernel, dilation).
_RESNET = [7] + [k for n in (3, 8, 36, 3) for k in [1, 3, 1, 1] + [1, 3, 1] * (n - 1)]
_DENSENET = [7] + [k for n in (6, 12, 24) for k in [1, 3] * n + [1]] + [1, 3] * 16
_CONVNEXT = [4] + [7] * 3 + [2] + [7] * 3 + [2] + [7] * 27 + [2] + [7] * 3
_YOLO = ([3, 3] + _c3(3) + [3] + _c3(9) + [3] + _c3(9) + [3] + _c3(3) + [3, 1, 1] + _c3(3)
         + [1] + _c3(3) + [1] + _c3(3) + [1] + _c3(3) + [3] + _c3(3) + [3] + _c3(3) + [3] + _c3(3)
         + [1] * 4)
_WINDOWS: dict[str, dict[str, list[tuple[int, int]]]] = {
    'VGG19_BN': {'conv2d': _plain(*[3] * 16), 'max_pool2d': _plain(*[2] * 5)},
    'ConvNeXt_Large': {'conv2d': _plain(*_CONVNEXT)},
    'ResNet152': {'conv2d': _plain(*_RESNET), 'max_pool2d': _plain(3)},
    'DenseNet121': {'conv2d': _plain(*_DENSENET), 'max_pool2d': _plain(3),
                    'avg_pool2d': _plain(2, 2, 2)},
    'kapao': {'conv2d': _plain(*_YOLO), 'max_pool2d': _plain(3, 5, 7)},
    'agrnav': {'conv2d': _plain(*[3] * 14), 'max_pool2d': _plain(2, 2, 2),
               'conv3d': [(3, 1), (3, 1), (3, 1), (3, 2), (3, 2), (3, 3), (3, 3), (3, 1)]}}
MODELS = tuple(_WINDOWS)

# Published mean latency in ms: robot alone, server alone, best layer partition, LOPInfer.
LATENCIES = {
    'indoors': {
        'VGG19_BN': (87, 89, 76, 61), 'ConvNeXt_Large': (198, 96, 92, 90),
        'ResNet152': (87, 110, 86, 94), 'DenseNet121': (75, 105, 76, 82),
        'kapao': (397, 255, 239, 210), 'agrnav': (782, 567, 527, 435)},
    'outdoors': {
        'VGG19_BN': (87, 105, 71, 68), 'ConvNeXt_Large': (198, 119, 108, 98),
        'ResNet152': (87, 126, 81, 86), 'DenseNet121': (75, 123, 68, 78),
        'kapao': (397, 313, 262, 215), 'agrnav': (782, 708, 560, 473)}}
