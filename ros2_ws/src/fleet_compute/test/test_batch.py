"""Several requests at once give each what it gets alone."""

import pytest
import torch
from fleet_compute.batch import together, unchecked


def test_each_request_gets_what_it_gets_alone():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(128, 5)).eval()

    def function(image, state):
        with torch.no_grad():
            return model(image), state.view(1, 6).cumsum(1) + image.mean()

    requests = [(torch.randn(1, 3, 16, 16), torch.randn(2, 3)) for _ in range(5)]
    for mine, request in zip(together(function, requests), requests, strict=True):
        torch.testing.assert_close(tuple(mine), function(*request))


def test_a_function_without_tensors_gives_each_request_its_result():
    assert [r[0].tolist() for r in together(lambda: (torch.ones(2),), [(), ()])] == [[1, 1]] * 2


def test_a_function_whose_control_flow_depends_on_values_is_refused():
    def function(x):
        return (x if x.sum() > 0 else -x,)
    with pytest.raises(RuntimeError):
        together(function, [(torch.ones(2),), (-torch.ones(2),)])


def test_a_request_that_fails_fails_all_and_changes_nothing():
    table, sound, bad = torch.arange(3.0), torch.tensor([0, 1]), torch.tensor([0, 9])
    with pytest.raises(Exception, match='range|bounds'):
        together(lambda index: (table[index],), [(sound,), (bad,)])
    assert together(lambda index: (table[index],), [(sound,), (sound,)])[1][0].tolist() == [0, 1]


ROWS = torch.arange(6.0).reshape(3, 2)
INDEXED = {
    'embedding': lambda rows, k: torch.embedding(rows, k),
    'index_select': lambda rows, k: rows.index_select(0, k),
    'gather': lambda rows, k: rows.gather(0, k[None]),
    'scatter': lambda rows, k: rows.scatter(0, k[None], torch.ones(1, 1)),
    'index_add': lambda rows, k: rows.index_add(0, k, torch.ones(1, 2)),
    'index_copy': lambda rows, k: rows.index_copy(0, k, torch.ones(1, 2)),
    'index_fill': lambda rows, k: rows.index_fill(0, k, 1.0),
    'index': lambda rows, k: rows[k],
    'one_hot': lambda rows, k: torch.nn.functional.one_hot(k, 3),
}


@pytest.mark.parametrize('name', INDEXED)
def test_an_index_out_of_range_is_an_error_in_a_batch_or_the_operator_is_not_batched(name):
    """Above all it must not reach the rows of another request."""
    indexed, wrong = INDEXED[name], torch.tensor([3])
    with pytest.raises((IndexError, RuntimeError)):
        indexed(ROWS, wrong)
    overload = getattr(torch.ops.aten, name).overloads()[0]
    if not unchecked(getattr(getattr(torch.ops.aten, name), overload), True):
        with pytest.raises((IndexError, RuntimeError)):
            together(lambda *tensors: [indexed(*tensors)],
                     [[ROWS, wrong], [ROWS, torch.tensor([1])]])


def test_an_embedding_of_what_all_requests_share_is_batched():
    embedding = torch.ops.aten.embedding.default
    assert unchecked(embedding, True) and not unchecked(embedding, False)
    with pytest.raises((IndexError, RuntimeError)):
        together(lambda k: [torch.embedding(ROWS, k)], [[torch.tensor([3])], [torch.tensor([1])]])
