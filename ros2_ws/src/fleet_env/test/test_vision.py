"""A torchvision that is not made for the installed PyTorch: it is imported anyway, and named."""

import importlib
import sys

import pytest
import torch
from fleet_env import vision
from fleet_env.vision import imported, other_build

SAID = ['operator torchvision::nms does not exist',
        "Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision versions",
        'Detected that PyTorch and torchvision were compiled with different CUDA major versions.']


@pytest.fixture
def version(monkeypatch):
    monkeypatch.setattr(vision.metadata, 'version', lambda name: '0.28.0+cu999')


@pytest.mark.parametrize('said', SAID)
@pytest.mark.parametrize(('ours', 'cuda', 'advice'), [
    ('2.13.0+cpu', None, 'torchvision==0.28.0 --index-url https://download.pytorch.org/whl/cpu'),
    ('2.13.0', '13.0', 'torchvision==0.28.0 --index-url https://download.pytorch.org/whl/cu130'),
    ('2.8.0a0+34c6371d24.nv25.08', '13.0', 'the torchvision that NVIDIA offers')])
def test_an_error_of_torchvision_gets_the_line_that_mends_it(
        version, monkeypatch, said, ours, cuda, advice):
    monkeypatch.setattr(torch, '__version__', ours)
    monkeypatch.setattr(torch.version, 'cuda', cuda)
    found = other_build(RuntimeError(said))
    assert found.startswith(f'torchvision 0.28.0+cu999 is not made for torch {ours}; ')
    assert advice in found and ('pip install' in found) == ('NVIDIA' not in found)


def test_another_error_gets_none(version):
    assert other_build(RuntimeError('expected a tensor')) == ''


def test_a_module_that_imports_torchvision_is_imported(monkeypatch, tmp_path):
    # as the real package: its import fails until the schemas of its operators are there
    (tmp_path / 'needs_torchvision.py').write_text(
        'import torchvision_stand_in\nif not torchvision_stand_in.KNOWN:\n'
        "    raise RuntimeError('operator torchvision::nms does not exist')\n")
    (tmp_path / 'torchvision_stand_in.py').write_text('KNOWN = []')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(vision, 'import_torchvision', lambda: importlib.import_module(
        'torchvision_stand_in').KNOWN.append('nms'))
    assert imported('needs_torchvision') is sys.modules['needs_torchvision']
    (tmp_path / 'wrong.py').write_text("raise RuntimeError('wrong')\n")
    with pytest.raises(RuntimeError, match='^wrong$'):
        imported('wrong')
