"""Tests that programs with libraries from PyPI return the same bits on the device and the CPU.

The models of these programs have random weights. Programs whose library is not installed are
skipped; docs/results/rrto.md says what to install.
"""

import clients
import pytest
import remote
import torch

COUNT = 8


@pytest.mark.long
@pytest.mark.parametrize('name', clients.CLIENTS)
def test_in_every_mode(name):
    try:
        expected = list(clients.run(name, 'cpu', COUNT))
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    for mode in remote.MODES:
        engine = remote.start(mode)
        for mine, theirs in zip(clients.run(name, 'cuda', COUNT), expected, strict=True):
            assert len(mine) == len(theirs) and all(map(torch.equal, mine, theirs)), mode
        assert mode != 'replay' or engine.inferences or name in clients.VARYING


@pytest.mark.parametrize('name', ['packed_lstm', 'benchmark_loop'])
def test_those_that_need_no_library(name):
    expected = list(clients.run(name, 'cpu', COUNT))
    for mode in ('async', 'replay'):
        remote.start(mode)
        got = list(clients.run(name, 'cuda', COUNT))
        assert all(torch.equal(a, b) for x, y in zip(got, expected, strict=True)
                   for a, b in zip(x, y, strict=True)), mode


@pytest.mark.long
@pytest.mark.parametrize('mode', ['async', 'replay'])
def test_no_operator_gives_other_values_than_on_a_cpu(mode):
    pytest.importorskip('expecttest', reason="PyTorch's testing modules import it")
    import opinfo
    found = opinfo.table(mode)
    assert not found.get('differs') and len(found['same']) > 600
    assert len(found.get('error', ())) < 10
