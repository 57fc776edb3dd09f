"""A save comes back as it was written, or is refused; a write that fails costs nothing."""

import json
import subprocess
import sys

import pytest
from fleet_env.durable import Kept
from fleet_env.errors import DurableError
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st

PAYLOAD = bytes(range(256)) * 8
META = {'iteration': 7, 'policy': {'list': ['robot1']}, 'elapsed_s': 1.5}


def saves(folder, keep=3):
    return Kept(folder, 'checkpoint', '.safetensors', keep)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2 ** 60, 2 ** 60) | st.text(max_size=9)
    | st.floats(allow_nan=False), lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)


@examples(30)
@given(st.binary(max_size=99), st.dictionaries(st.sampled_from('abc'), json_values))
def test_a_save_reads_back_unchanged(tmp_path_factory, payload, meta):
    folder = tmp_path_factory.mktemp('run')
    path = saves(folder).write(payload, meta)
    assert saves(folder).newest() == (path, payload, meta)


def test_only_the_newest_saves_are_kept(tmp_path):
    for number in range(5):
        saves(tmp_path).write(PAYLOAD, {'number': number})
    assert saves(tmp_path).newest().meta == {'number': 4}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f'checkpoint-00000{n}{end}' for n in (3, 4, 5) for end in ('.json', '.safetensors')]


def test_an_orphaned_payload_is_deleted_with_the_old_saves(tmp_path):
    for number in range(4):
        saves(tmp_path).write(PAYLOAD, META)
    (tmp_path / 'checkpoint-000001.safetensors').write_bytes(PAYLOAD)  # its JSON is gone already
    (tmp_path / 'checkpoint-000005.safetensors').write_bytes(b'')  # its JSON was not written yet
    assert saves(tmp_path).write(PAYLOAD, META).name == 'checkpoint-000005.safetensors'
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f'checkpoint-00000{n}{end}' for n in (3, 4, 5) for end in ('.json', '.safetensors')]
    assert saves(tmp_path).newest().payload == PAYLOAD


def test_newest_is_none_without_saves(tmp_path):
    assert saves(tmp_path).newest() is None
    assert saves(tmp_path / 'not there').newest() is None


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << at % 8
    path.write_bytes(data)


@examples(60)
@given(st.integers(0, 10 ** 6), st.booleans())
def test_a_flipped_bit_anywhere_is_found_and_the_one_before_is_used(tmp_path_factory, at, in_json):
    folder = tmp_path_factory.mktemp('run')
    saves(folder).write(PAYLOAD, META)
    path = saves(folder).write(PAYLOAD, {**META, 'iteration': 8})
    flip(path.with_suffix('.json') if in_json else path, at)
    store = saves(folder)
    found = store.newest()
    # White space of JSON says nothing; all else is found.
    assert found.meta['iteration'] == 7 and str(path) in store.skipped[0] or found.meta == {
        **META, 'iteration': 8} and in_json


@pytest.mark.parametrize('damage', [
    lambda path: path.unlink(), lambda path: path.write_bytes(b''),
    lambda path: path.write_bytes(PAYLOAD[:-1]), lambda path: flip(path, 77),
    lambda path: path.with_suffix('.json').write_text('[]'),
    lambda path: path.with_suffix('.json').write_text('{}'),
    lambda path: path.with_suffix('.json').write_bytes(b'\xff')])
def test_if_all_saves_are_damaged_the_error_names_each(tmp_path, damage):
    paths = [saves(tmp_path).write(PAYLOAD, META) for _ in range(2)]
    for path in paths:
        damage(path)
    with pytest.raises(DurableError) as raised:
        saves(tmp_path).newest()
    assert all(str(path) in str(raised.value) for path in paths)


def test_an_unfinished_save_is_ignored(tmp_path):
    path = saves(tmp_path).write(PAYLOAD, META)
    later = saves(tmp_path).path(2)
    later.write_bytes(b'half')                        # killed before the JSON file was there
    (tmp_path / '.checkpoint-xyz').write_bytes(b'?')  # killed while it was written
    assert saves(tmp_path).newest().path == path
    saves(tmp_path).probe()
    assert saves(tmp_path).write(PAYLOAD, META) == later
    assert not (tmp_path / '.checkpoint-xyz').exists()


FULL = """
import resource, sys, signal
from pathlib import Path
from fleet_env.durable import Kept
from fleet_env.errors import DurableError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
store = Kept(Path(sys.argv[1]), 'checkpoint', '.safetensors', 1)
for act in (store.probe, lambda: store.write(bytes(5000), {})):
    try:
        act()
        print('written')
    except DurableError as error:
        print(error)
"""


@pytest.mark.parametrize('limit, said', [(100, ['File too large'] * 2),
                                         (70_000, ['written', 'written'])])
def test_a_full_disk_is_an_error_and_the_former_save_stays(tmp_path, limit, said):
    saves(tmp_path).write(PAYLOAD, META)
    out = subprocess.run([sys.executable, '-c', FULL, str(tmp_path), str(limit)],
                         capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(out) == 2 and all(text in line for text, line in zip(said, out, strict=True))
    assert not list(tmp_path.glob('.checkpoint-*'))
    assert saves(tmp_path).newest().payload == (bytes(5000) if limit > 1000 else PAYLOAD)


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(DurableError, match='cannot be written'):
        saves(tmp_path / 'file' / 'out').probe()


def test_a_temporary_file_that_cannot_be_removed_is_an_error(tmp_path):
    (tmp_path / '.checkpoint-xyz').mkdir()
    for look in saves(tmp_path).tidy, saves(tmp_path).probe:
        with pytest.raises(DurableError, match='cannot be written'):
            look()


def test_meta_is_readable_json(tmp_path):
    path = saves(tmp_path).write(PAYLOAD, META)
    assert json.loads(path.with_suffix('.json').read_text())['iteration'] == 7
