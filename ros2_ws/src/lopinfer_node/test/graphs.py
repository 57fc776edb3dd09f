"""Graphs for tests and benches, made without a model.

Some are small and random; others are large and have the shapes of real networks.
"""

from dataclasses import dataclass, field

import numpy as np
from lopinfer_node.model import footprint as fp
from lopinfer_node.model.graph import Graph, Kind, Node
from lopinfer_node.planning.timeline import Costs, Link


@dataclass
class Builder:
    """Builds graphs of tensors (channels, extent, width), whose axis of division is the extent.

    The output of `whole` is different: its shape is (features,), and no axis divides it.
    """

    nodes: list[Node] = field(default_factory=list)

    def add(self, op, inputs, footprints, shape, axis=1, is_global=False, kind=Kind.OPERATOR):
        index = len(self.nodes)
        self.nodes.append(Node(index, f'{op}_{index}', kind, op, tuple(inputs), tuple(footprints),
                               tuple(shape), axis=axis, is_global=is_global))
        return index

    def extent(self, node):
        return self.nodes[node].extent

    def input(self, channels, extent, width):
        return self.add('input', (), (), (channels, extent, width), kind=Kind.INPUT)

    def window(self, source, channels, kernel, stride=1, padding=0, op='conv'):
        _, extent, width = self.nodes[source].shape
        out = (extent + 2 * padding - kernel) // stride + 1
        return self.add(op, [source], [fp.window(out, extent, kernel, stride, padding)],
                        (channels, out, max(width // stride, 1)))

    def pointwise(self, sources, op='relu'):
        shape = self.nodes[sources[0]].shape
        return self.add(op, sources, [fp.identity(shape[1])] * len(sources), shape)

    def join(self, sources):
        shapes = [self.nodes[s].shape for s in sources]
        _, extent, width = shapes[0]
        return self.add('cat', sources, [fp.identity(extent)] * len(sources),
                        (sum(s[0] for s in shapes), extent, width))

    def whole(self, source, features, op='linear'):
        return self.add(op, [source], [fp.whole(1, self.extent(source))], (features,), axis=None,
                        is_global=self.extent(source) > 1)

    def softmax(self, source):
        shape = self.nodes[source].shape
        return self.add('softmax', [source], [fp.whole(shape[1], shape[1])], shape,
                        is_global=shape[1] > 1)

    def output(self, source):
        node = self.nodes[source]
        return self.add('output', [source], [fp.identity(node.extent)], node.shape, axis=node.axis,
                        kind=Kind.OUTPUT)

    def graph(self, name):
        return Graph(self.nodes, name)


def chain(channels=(64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512,
                    512, 512, 0), extent=224):
    """Return the graph of VGG19 with batch norms.

    Each number in ``channels`` adds a 3x3 convolution with this number of output channels; 0 adds a
    pooling. Three linear operators follow.
    """
    b = Builder()
    at = b.input(3, extent, extent)
    for c in channels:
        if c:
            at = b.pointwise([b.pointwise([b.window(at, c, 3, 1, 1)], 'batch_norm')])
        else:
            at = b.window(at, b.nodes[at].shape[0], 2, 2, op='max_pool')
    for features in (4096, 4096, 1000):
        at = b.whole(at, features)
    b.output(at)
    return b.graph('chain')


def residual(blocks=(3, 8, 36, 3), extent=224):
    """Return a ResNet of bottleneck blocks; the default has 515 nodes, like ResNet152."""
    b = Builder()
    at = b.pointwise([b.pointwise([b.window(b.input(3, extent, extent), 64, 7, 2, 3)],
                                  'batch_norm')])
    at = b.window(at, 64, 3, 2, 1, 'max_pool')
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            inner = b.pointwise([b.pointwise([b.window(at, width, 1)], 'batch_norm')])
            inner = b.pointwise([b.pointwise([b.window(inner, width, 3, stride, 1)],
                                             'batch_norm')])
            inner = b.pointwise([b.window(inner, 4 * width, 1)], 'batch_norm')
            skip = at if block else b.pointwise([b.window(at, 4 * width, 1, stride)], 'batch_norm')
            at = b.pointwise([b.pointwise([inner, skip], 'add')])
    b.output(b.whole(b.whole(at, 2048, 'mean'), 1000))
    return b.graph('residual')


def dense(blocks=(6, 12, 24, 16), extent=224):
    """Return a DenseNet: each layer gets the outputs of all earlier layers in its block."""
    b = Builder()
    at = b.pointwise([b.pointwise([b.window(b.input(3, extent, extent), 64, 7, 2, 3)],
                                  'batch_norm')])
    at = b.window(at, 64, 3, 2, 1, 'max_pool')
    for number, layers in enumerate(blocks):
        features = [at]
        for _ in range(layers):
            inner = b.pointwise([b.pointwise([b.join(features)], 'batch_norm')])
            inner = b.pointwise([b.pointwise([b.window(inner, 128, 1)], 'batch_norm')])
            features.append(b.window(inner, 32, 3, 1, 1))
        at = b.pointwise([b.pointwise([b.join(features)], 'batch_norm')])
        if number < len(blocks) - 1:
            at = b.window(at, b.nodes[at].shape[0] // 2, 1)
            at = b.window(at, b.nodes[at].shape[0], 2, 2, op='avg_pool')
    b.output(b.whole(b.whole(at, 1024, 'mean'), 1000))
    return b.graph('dense')


def work_costs(graph, device, server, launch=0.0):
    """Return costs in proportion to multiplications, plus a constant for each operator.

    ``device``, ``server``: seconds for the whole graph on each side, without the constants.
    ``launch``: the constant on the device, in seconds; the server's constant is half of it.
    """
    flops = np.zeros(len(graph))
    for n in graph.nodes:
        if n.kind is Kind.OPERATOR:
            channels = graph.nodes[n.inputs[0]].shape[0] if n.op in ('conv', 'linear') else 1
            taps = 9 if n.op == 'conv' and not n.footprints[0].starts.all() else 1
            flops[n.index] = np.prod(n.shape) * (channels * taps + 10)
    operators = np.array([n.kind is Kind.OPERATOR for n in graph.nodes])
    share = flops / flops.sum()
    return Costs(np.stack([operators * launch, operators * launch / 2]),
                 np.stack([share * device, share * server]))


def random_graph(seed, operators=12):
    """Return a random DAG with all kinds of footprints, extents 4 to 16, and residual edges."""
    rng = np.random.default_rng(seed)
    b = Builder()
    at = b.input(int(rng.integers(1, 5)), int(rng.integers(4, 17)), 4)
    made = [at]
    for _ in range(int(rng.integers(2, operators + 1))):
        source = at if rng.random() < 0.75 else int(rng.choice(made))
        _append(b, rng, source, made)
        at = len(b.nodes) - 1
        made.append(at)
    taken = {s for n in b.nodes for s in n.inputs}
    for node in made[1:]:
        if node not in taken:
            b.output(node)
    return b.graph(f'random {seed}')


def _append(b, rng, source, made):
    node = b.nodes[source]
    channels, extent = int(rng.integers(1, 9)), node.extent
    if node.axis is None:
        return b.add('linear', [source], [fp.whole(1, 1)], (channels * 4,), axis=None)
    same = [m for m in made if b.nodes[m].shape == node.shape and m != source]
    kind = rng.choice(['conv', 'strided', 'relu', 'add', 'whole', 'softmax', 'slice'],
                      p=[0.35, 0.15, 0.2, 0.15, 0.05, 0.05, 0.05])
    if kind == 'add' and same:
        return b.pointwise([source, int(rng.choice(same))], 'add')
    if kind == 'conv' and extent >= 3:
        return b.window(source, channels, *[(3, 1, 1), (5, 1, 2), (1, 1, 0)][rng.integers(3)])
    if kind == 'strided' and extent >= 8:
        return b.window(source, channels, *[(3, 2, 1), (2, 2, 0), (1, 2, 0)][rng.integers(3)])
    if kind == 'whole':
        return b.whole(source, channels * 4)
    if kind == 'softmax':
        return b.softmax(source)
    if kind == 'slice' and extent >= 6:
        offset = int(rng.integers(0, 3))
        return b.add('slice', [source], [fp.shifted(extent - 2, offset, extent)],
                     (node.shape[0], extent - 2, node.shape[2]))
    return b.pointwise([source])


def random_costs(graph, seed):
    """Return costs of a slow device, a faster server and a slow link.

    The costs contain a constant for the launch of each operator.
    """
    rng = np.random.default_rng([seed, 1])
    size = len(graph)
    operators = np.array([n.kind is Kind.OPERATOR for n in graph.nodes])
    shape = np.array([float(np.prod(n.shape)) for n in graph.nodes])
    share = rng.gamma(1.0, 1.0, size) * shape / shape.mean() * 1e-3 * operators
    launch = rng.choice([0.0, 5e-5, 3e-4]) * rng.uniform(0.5, 1.5, size) * operators
    speedup = rng.uniform(1.5, 20)
    costs = Costs(np.stack([launch, launch * rng.uniform(0.1, 1)]),
                  np.stack([share, share / speedup * rng.uniform(0.5, 2, size)]))
    alone = float(costs.fixed[0].sum() + costs.per_share[0].sum())
    rate = graph.input_bytes / alone * float(np.exp(rng.uniform(np.log(0.5), np.log(20))))
    return costs, Link(rate, rate * float(rng.choice([1.0, 0.5, 2.0])),
                       float(rng.choice([0.0, 1e-4, 1e-3])))


def random_plan_bounds(graph, seed):
    """Return random bounds (`most`, `least`) for all operators.

    One side computes a global operator whole. Of the other operators, some get a random `most`,
    some get a random `least`, and the rest keep the widest bounds.
    """
    rng = np.random.default_rng([seed, 2])
    most, least = graph.extents.copy(), np.zeros(len(graph), np.int64)
    for node in graph.nodes:
        i = node.index
        if node.is_global:
            most[i] = least[i] = node.extent * int(rng.integers(2))
        elif rng.random() < 0.3:
            most[i] = rng.integers(0, node.extent + 1)
        elif rng.random() < 0.4:
            least[i] = rng.integers(0, node.extent + 1)
    return most, least
