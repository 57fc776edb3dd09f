"""A run belongs to one server process at a time, and every start of the server is counted."""

import subprocess
import sys
from contextlib import ExitStack

import pytest
from fleet_env.errors import DurableError
from rog_ps.directory import SERVED, Claim, claim, run_in

HOLD = """
import sys
from contextlib import ExitStack
from pathlib import Path
from rog_ps.directory import claim
with ExitStack() as held:
    print(*claim(Path(sys.argv[1]), sys.argv[2] == 'resume', held), flush=True)
    sys.stdin.readline()
print('released', flush=True)
sys.stdin.read()
"""


def holder(out, resume):
    """Return a process that has claimed a directory, and its claim."""
    process = subprocess.Popen([sys.executable, '-c', HOLD, str(out), 'resume' * resume], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return process, Claim(*map(int, process.stdout.readline().split()))


@pytest.fixture
def held():
    with ExitStack() as stack:
        yield stack


def test_a_run_goes_on_with_the_next_start_once_its_server_is_dead(tmp_path, held):
    first, begun = holder(tmp_path / 'out', False)
    try:
        assert begun.start == 1 and run_in(tmp_path / 'out') == begun.run
        with pytest.raises(DurableError, match='another parameter server.*still running'):
            claim(tmp_path / 'out', True, held)
    finally:
        first.kill()
        first.wait()
    second, resumed = holder(tmp_path / 'out', True)
    second.kill()
    second.wait()
    assert resumed == (begun.run, 2)
    assert claim(tmp_path / 'out', False, held).start == 1
    assert run_in(tmp_path / 'out') != begun.run


def test_a_node_that_was_cleaned_up_leaves_its_run_to_others(tmp_path, held):
    first, begun = holder(tmp_path / 'out', False)
    try:
        first.stdin.write('\n')
        first.stdin.flush()
        assert first.stdout.readline() == 'released\n'
        assert claim(tmp_path / 'out', True, held) == (begun.run, 2)
    finally:
        first.kill()
        first.wait()


@pytest.mark.parametrize('damage', ['', '{', '[1]', '{"run": "0", "start": "1"}',
                                    '{"run": "' + 'f' * 17 + '", "start": "1"}' + ' ' * 500])
def test_without_its_file_a_run_is_a_new_one(tmp_path, damage, held):
    (tmp_path / SERVED).write_text(damage)
    assert run_in(tmp_path) == 0 == run_in(tmp_path / 'none')
    taken = claim(tmp_path, True, held)
    assert taken.start == 1 and run_in(tmp_path) == taken.run > 0


def test_without_a_directory_every_process_is_a_run_of_its_own(held):
    assert claim(None, False, held).run != claim(None, False, held).run


def test_a_directory_that_cannot_be_written_is_said(tmp_path, held):
    (tmp_path / 'out').write_text('a file')
    with pytest.raises(DurableError, match='cannot be written'):
        claim(tmp_path / 'out', False, held)
