"""A program finds this machine's GPU while its device 'cuda' is a server's."""

import pytest
import torch
from fleet_ros import own_gpu as module
from fleet_ros.own_gpu import OWN_DEVICE, OWN_VISIBLE, SETTINGS, VISIBLE, own_environment, own_gpu


@pytest.mark.parametrize('version, variables, files, expected', [
    ('12.6', {}, ['/dev/nvidia0'], 'cuda'), (None, {}, ['/dev/nvidia0'], ''),
    ('12.6', {}, [], ''), ('12.6', {OWN_VISIBLE: ''}, ['/dev/nvidia0'], ''),
    ('12.6', {OWN_VISIBLE: '1'}, ['/dev/nvidia0'], 'cuda'),
    (None, {OWN_DEVICE: 'cpu'}, [], 'cpu')])
def test_there_may_be_a_gpu_where_pytorch_and_a_driver_are(version, variables, files, expected,
                                                           monkeypatch):
    monkeypatch.setattr(torch.version, 'cuda', version)
    monkeypatch.setattr(torch.version, 'hip', None)
    monkeypatch.setattr(module, 'glob', lambda pattern: files)
    for name in OWN_DEVICE, OWN_VISIBLE:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert own_gpu() == expected


@pytest.mark.parametrize('own', [None, '1'])
def test_the_other_process_sees_what_the_program_saw_outside(own, monkeypatch):
    monkeypatch.setenv(VISIBLE, 'rrto')
    monkeypatch.setenv(SETTINGS, '{}')
    monkeypatch.delenv(OWN_VISIBLE, raising=False)
    if own:
        monkeypatch.setenv(OWN_VISIBLE, own)
    found = own_environment()
    assert found.get(VISIBLE) == own and found[SETTINGS] == ''
