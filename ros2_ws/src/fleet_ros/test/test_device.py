"""The setting `device` means the same for gradients, rows, inferences and programs."""

import sys

import pytest
import torch
from fleet_env.errors import SettingError
from fleet_ros.device import own_device, torch_device


def test_auto_is_a_gpu_where_there_is_one():
    assert torch_device('cpu') == torch.device('cpu')
    assert torch_device('auto').type == ('cuda' if torch.cuda.is_available() else 'cpu')


def test_a_missing_device_is_refused_with_the_reason():
    with pytest.raises(SettingError, match="device 'cuda:99' cannot be used here: "):
        torch_device('cuda:99')


def test_the_own_device_is_never_that_of_a_server(monkeypatch):
    assert own_device('auto') == torch_device('auto')
    monkeypatch.setitem(sys.modules, 'rrto_bridge.program.launcher', None)   # as in `rrto run`
    assert own_device('auto') == own_device('cuda:99') == torch.device('cpu')
