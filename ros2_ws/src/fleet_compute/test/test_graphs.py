"""Graphs give what the function gives, are few, and go with what they were captured from."""

import gc
import threading

import pytest
import torch
from fleet_compute.graphs import AFTER, Graphs, Parts, graphs_on
from replayed import Replayed

GPU = pytest.param('cuda', marks=[pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason='no GPU')])


@pytest.fixture
def capture():
    return Replayed()


def repeat(graphs, parts, function=torch.neg, times=AFTER + 1, key='k', size=4):
    for _ in range(times):
        x = torch.rand(size)
        result, = graphs.run(parts, key, 'a model', lambda *t: [function(*t)], [x])
        torch.testing.assert_close(result, function(x))
    return result


@pytest.mark.parametrize('device', ['cpu', GPU])
def test_what_has_run_a_few_times_is_captured_and_every_result_is_its_own(capture, device):
    graphs = Graphs(capture) if device == 'cpu' else graphs_on(torch.device('cuda:0'))
    parts, weight = Parts(), torch.rand(4, 4, device=device)
    inputs = [torch.rand(4, device=device) for _ in range(AFTER + 4)]
    results = [graphs.run(parts, 'k', 'm', lambda x: [x @ weight, x], [x]) for x in inputs]
    for x, (product, same) in zip(inputs, results, strict=True):
        torch.testing.assert_close(product, x @ weight)
        assert torch.equal(same, x)
    assert len(graphs) == 1
    weight.zero_()      # a graph reads the weights where they are
    assert not graphs.run(parts, 'k', 'm', lambda x: [x @ weight, x], inputs[:1])[0].any()
    if device == 'cpu':
        assert capture.captures == 1 and capture.replays == 1 + 3 + 1


def test_other_shapes_types_parts_and_keys_have_graphs_of_their_own(capture):
    graphs, parts = Graphs(capture), Parts()
    for size, key, of in (4, 'k', parts), (5, 'k', parts), (4, 'l', parts), (4, 'k', Parts()):
        repeat(graphs, of, key=key, size=size)
    run = graphs.run(parts, 'k', 'm', lambda x: [-x], [torch.ones(4, dtype=torch.int32)])
    assert run[0].dtype == torch.int32 and len(graphs) == capture.captures == 4


def test_a_graph_that_gives_something_else_is_refused_and_that_is_said_once(capture, caplog):
    graphs, parts = Graphs(capture), Parts()
    repeat(graphs, parts, times=AFTER)
    capture.change = lambda outputs: [torch.zeros_like(output) for output in outputs]
    repeat(graphs, parts, times=5)
    assert capture.captures == 1 and not len(graphs)
    assert [r.getMessage()[:22] for r in caplog.records] == ['a model: not captured ']


@pytest.mark.parametrize('error', [RuntimeError('synchronises'), MemoryError()])
def test_what_cannot_be_captured_is_computed_as_before(error, caplog):
    def capture(*arguments):
        raise error
    graphs = Graphs(capture)
    repeat(graphs, Parts(), times=AFTER + 5)
    assert not len(graphs) and len(caplog.records) == 1


def test_an_error_of_the_function_is_its_callers_and_changes_nothing(capture):
    def function(index):
        return [torch.arange(4)[index]]
    graphs, parts = Graphs(capture), Parts()
    good, bad = torch.tensor([3]), torch.tensor([9])
    for turn in range(AFTER + 3):
        assert graphs.run(parts, 'k', 'm', function, [good])[0] == 3
        with pytest.raises(IndexError):
            graphs.run(parts, 'k', 'm', function, [bad])
        assert len(graphs) == (turn >= AFTER)


def test_the_least_recently_used_graph_goes_and_must_run_longer_to_come_back(capture):
    graphs, parts = Graphs(capture, most=2), Parts()
    for key in 'abac':
        repeat(graphs, parts, key=key)
    assert len(graphs) == 2
    before = capture.captures
    repeat(graphs, parts, key='a', times=1)
    repeat(graphs, parts, key='b', times=2 * AFTER)
    assert capture.captures == before
    repeat(graphs, parts, key='b', times=1)
    assert capture.captures == before + 1 and len(graphs) == 2


def test_graphs_take_no_more_memory_than_they_may(capture, caplog):
    graphs, parts = Graphs(capture, room=100), Parts()
    for key in 'abc':
        repeat(graphs, parts, key=key, size=10)     # 40 bytes each
    assert graphs.nbytes == 80
    repeat(graphs, parts, key='large', size=26)
    assert graphs.nbytes == 80 and 'MiB' in caplog.text
    graphs.room = 50
    repeat(graphs, parts, key='other', times=1)
    assert graphs.nbytes == 40
    repeat(graphs, parts, key='c', times=1)
    assert graphs.nbytes == 40


def test_the_graphs_of_a_program_go_with_it(capture):
    graphs, parts, other = Graphs(capture), Parts(), Parts()
    repeat(graphs, parts)
    repeat(graphs, other)
    del parts
    gc.collect()
    assert len(graphs) == 1 and graphs.nbytes == 16


def test_a_thread_that_finds_another_one_at_work_waits_for_nothing(capture):
    graphs, parts, results = Graphs(capture), Parts(), []
    repeat(graphs, parts)

    def slow(outer):
        thread = threading.Thread(target=lambda: results.append(
            graphs.run(parts, 'k', 'm', lambda x: [-x], [torch.ones(4)])))
        thread.start()
        thread.join(60.0)
        return [outer]
    graphs.run(parts, 'slow', 'm', slow, [torch.ones(1)])
    assert torch.equal(results[0][0], -torch.ones(4))


def test_a_device_without_graphs_has_none():
    assert graphs_on(torch.device('cpu')) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')
def test_after_an_operator_that_synchronises_others_are_captured_and_memory_is_freed(caplog):
    graphs, parts = graphs_on(torch.device('cuda:0')), Parts()
    for _ in range(AFTER + 2):
        x = torch.rand(8, device='cuda')
        assert graphs.run(parts, 'k', 'm', lambda x: [x * float(x.sum())], [x])
    assert 'not captured' in caplog.text
    before = len(graphs)
    for _ in range(AFTER + 2):
        result, = graphs.run(parts, 'l', 'm', lambda x: [x * 2], [x])
        torch.testing.assert_close(result, x * 2)
    assert len(graphs) == before + 1
    torch.cuda.empty_cache()    # fails while the allocator believes in a capture
