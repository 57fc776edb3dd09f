"""Unmodified programs as processes: in every mode they print what plain PyTorch prints on a CPU.

Set RRTO_INFERENCES=200 for the complete test; then each program is a separate test.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import FORKED, PROGRAMS, Domain

# `images` must be the last: after using rclpy, a process crashes when its forked children end.
NAMES = ('classify', 'segment', 'detect', 'encoder', 'mlp', 'two_models', 'batches', 'branches',
         'recurrent', 'loops', 'traced', 'images')
VISION = ('classify', 'segment')
FULL = 'RRTO_INFERENCES' in os.environ
GROUPS = [(name,) for name in NAMES] if FULL else [NAMES]
MODES = ('rpc', 'cached', 'async', 'replay')


@pytest.fixture(scope='module')
def domain():
    made = Domain()
    made.popen = FORKED
    made.server('tested', threads=1, lease=120.0).wait('serving as tested')
    made.popen = subprocess.Popen
    yield made
    made.close()


@pytest.fixture(scope='module')
def expected(domain):
    known = {}

    def of(names):
        if names not in known:
            known[names] = domain.plain(str(PROGRAMS / 'everything.py'), *names)
        return known[names]
    return of


@pytest.mark.long
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('names', GROUPS, ids=lambda names: names[0] if len(names) == 1 else 'all')
def test_output_is_that_of_plain_pytorch(domain, expected, mode, names):
    if not FULL and mode in ('rpc', 'cached'):
        # Skip the programs in VISION: in these two modes they would need thousands of round trips.
        names = tuple(n for n in names if n not in VISION)
    code, out, err = domain.run('--server', 'tested', '--mode', mode, '--', sys.executable,
                                str(PROGRAMS / 'everything.py'), *names)
    assert code == 0, err
    assert out == expected(names)
    assert err == ''


HIDING = """
import os, subprocess, sys
os.environ['CUDA_VISIBLE_DEVICES'] = sys.argv[1] if len(sys.argv) > 1 else 'x'
import torch
print(torch.cuda.is_available())
"""


@pytest.mark.long
def test_a_program_that_hides_all_devices_sees_none(domain, tmp_path, monkeypatch):
    path = tmp_path / 'hiding.py'
    path.write_text(HIDING)
    command = ('--server', 'tested', '--', sys.executable, str(path))
    for value, seen in (('', 'False'), ('-1', 'False'), ('0', 'True')):
        assert domain.run(*command, value) == (0, seen + '\n', '')
    monkeypatch.setitem(domain.env, 'CUDA_VISIBLE_DEVICES', '')
    code, out, err = domain.run(*command)
    assert (code, out) == (0, 'True\n') and 'does not hide the device' in err


def test_a_program_sees_the_types_of_pytorch(domain, monkeypatch):
    program = str(PROGRAMS / 'kinds.py')
    code, out, err = domain.run('--server', 'tested', '--', sys.executable, program)
    assert (code, err) == (0, '')
    monkeypatch.setattr(domain, 'popen', FORKED)
    assert out == domain.plain(program)
    assert domain.run('--server', 'tested', '--', sys.executable, '-c',
                      Path(program).read_text()) == (0, out, '')
