"""Tests that the pictures show the times of the timeline, and can be written to files."""

import matplotlib.collections
import matplotlib.image
import numpy as np
import pytest
from fleet_testing import examples
from graphs import Builder
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.planning import plots
from lopinfer_node.planning.plan import Plan
from lopinfer_node.planning.timeline import Costs, Link, estimate


def graph_of(operators):
    builder = Builder()
    last = builder.input(3, 16, 16)
    for op in operators:
        last = builder.window(last, 4, 3, 1, 1, op)
    builder.output(last)
    return builder.graph('net')


GRAPH = graph_of(['conv2d', 'batch_norm', 'relu', 'max_pool2d', 'linear', 'cat'])
COSTS = Costs(np.full((2, len(GRAPH)), 1e-4), np.full((2, len(GRAPH)), [[5e-3], [5e-4]]))


def view(cut, bandwidth=1e6, method='lopinfer'):
    cuts = np.full(len(GRAPH), cut)
    timeline = estimate(GRAPH, Plan.of_cuts(GRAPH, cuts, cuts), COSTS,
                        Link(bandwidth, bandwidth, 1e-3))
    return plots.View(method, bandwidth, timeline)


@given(st.integers(0, 16), st.floats(1e4, 1e8))
@examples(60)
def test_phases_add_up_to_the_latency(cut, bandwidth):
    timeline = view(cut, bandwidth).timeline
    phases = plots.phases(timeline)
    assert min(phases) >= 0
    assert sum(phases) == pytest.approx(timeline.latency)


def test_phases_of_the_extremes():
    robot, link, server, overlap, nobody = plots.phases(view(16).timeline)
    assert (link, server, overlap, nobody) == (0, 0, 0, 0) and robot > 0
    robot, link, server, overlap, nobody = plots.phases(view(0).timeline)
    assert (robot, overlap) == (0, 0) and link > 0 and server > 0
    # robot, link and server are all idle only during the link's delay: 1 ms up and 1 ms down
    assert nobody == pytest.approx(2e-3)


def test_overlap_appears_when_both_compute():
    assert plots.phases(view(8).timeline)[3] > 0


@pytest.mark.parametrize(('op', 'name'), [
    ('conv2d', 'convolution'), ('convolution', 'convolution'), ('native_layer_norm',
     'normalisation'), ('relu_', 'element-wise'), ('adaptive_avg_pool2d', 'pooling'),
    ('addmm', 'matrix'), ('__getitem__', 'layout')])
def test_operators_have_the_class_that_one_expects(op, name):
    assert plots.operator_class(op)[0] == name


def color(name):
    return tuple(int(name[i:i + 2], 16) for i in (1, 3, 5))


def drawn(path, legend=0.25):
    """Return the set of colours in a picture above its legend.

    ``legend``: share of the picture's height that the legend takes.
    """
    pixels = matplotlib.image.imread(path)[..., :3]
    pixels = pixels[:int(len(pixels) * (1 - legend))]
    return {tuple(c) for c in np.unique((pixels.reshape(-1, 3) * 255).round().astype(int), axis=0)}


def test_the_timeline_shows_operators_and_transfers(tmp_path):
    path = tmp_path / 'timeline.png'
    plots.draw_timeline(GRAPH, [view(8), view(16, method='device-only')], path)
    assert {color(plots._TRANSFER), color('#0072b2'), color(plots._PATH)} <= drawn(path)


def test_a_plan_without_transfers_shows_none(tmp_path):
    path = tmp_path / 'timeline.png'
    plots.draw_timeline(GRAPH, [view(16), view(16)], path)
    assert color(plots._TRANSFER) not in drawn(path) and color('#0072b2') in drawn(path)


def test_the_critical_path_runs_from_the_input_to_the_result(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(plots, 'LineCollection',
                        lambda segments, **look: lines.append(segments)
                        or matplotlib.collections.LineCollection(segments, **look))
    seen = view(0)
    plots.draw_timeline(GRAPH, [seen], tmp_path / 'timeline.png')
    points = np.concatenate([np.array(line) for line in lines[0]])
    assert points[:, 0].min() == 0
    assert points[:, 0].max() == pytest.approx(seen.timeline.latency * 1e3)
    boxes = [np.mean([y for _, y in line[:4]]) for line in lines[0] if len(line) == 5]
    assert boxes == pytest.approx([1, 3, 2])        # rows: uplink, server, downlink


def test_a_plan_that_never_ends_is_refused(tmp_path):
    with pytest.raises(ValueError, match='end'):
        plots.draw_timeline(GRAPH, [view(8, 0.0)], tmp_path / 'a.png')
    with pytest.raises(ValueError, match='at least one'):
        plots.draw_timeline(GRAPH, [], tmp_path / 'a.png')


def test_bandwidth_and_breakdown_are_written(tmp_path):
    bandwidths = [0.0, 1e6, 2e6]
    plots.draw_bandwidth(bandwidths, {'server-only': [np.inf, 2.0, 1.0], 'lopinfer': [1.0] * 3},
                         tmp_path / 'b.png', 'net')
    assert color('#d55e00') in drawn(tmp_path / 'b.png', legend=.3)
    plots.draw_breakdown({'dsccs': view(16).timeline, 'lopinfer': view(8).timeline},
                         tmp_path / 'c.svg')
    assert 'overlap' in (tmp_path / 'c.svg').read_text()
