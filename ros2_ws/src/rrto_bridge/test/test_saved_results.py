"""The comparison of saved results finds every difference."""

import pytest
import torch
from saved_results import compare, verdict

SAME = (['1', torch.tensor([1.0, float('nan')])], 'ValueError: no')


@pytest.mark.parametrize('other, expected', [
    (SAME, 'same'),
    ((SAME[0], 'ValueError: in other words'), 'same'),
    ((['2', SAME[0][1]], SAME[1]), 'differs'),
    ((['1', torch.tensor([1.0, 2.0])], SAME[1]), 'differs'),
    ((['1', torch.tensor([1.0, float('nan')], dtype=torch.float64)], SAME[1]), 'differs'),
    ((['1'], SAME[1]), 'differs'),
    ((SAME[0], ['1']), 'fails in one file'),
    (None, 'only in one file')])
def test_every_difference_has_its_verdict(other, expected):
    assert verdict(SAME, other)[0] == expected


def test_a_difference_is_told_with_its_size(capsys):
    ones = torch.ones(3, dtype=torch.complex64)
    assert compare({'a': ([ones],), 'b': SAME}, {'a': ([1.5 * ones],), 'b': SAME}) == {
        'differs': 1, 'same': 1}
    assert capsys.readouterr().out == 'a: differs 0: relative difference 5.0e-01\n'
