"""A saved file is read back unchanged, or refused; a failed write loses nothing."""

import json
import subprocess
import sys

import pytest
from fleet_env.durable import Kept
from fleet_env.errors import DurableError
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st


def tensors(content):
    """Return a file in the format of safetensors, with one tensor."""
    header = json.dumps({'w': {'dtype': 'U8', 'shape': [len(content)],
                               'data_offsets': [0, len(content)]}}).encode()
    return len(header).to_bytes(8, 'little') + header + content


PAYLOAD = tensors(bytes(range(256)) * 8)
META = {'iteration': 7, 'policy': {'list': ['robot1']}, 'elapsed_s': 1.5}


def saves(folder, keep=3):
    return Kept(folder, 'checkpoint', keep)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2 ** 60, 2 ** 60) | st.text(max_size=9)
    | st.floats(allow_nan=False), lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)


@examples(30)
@given(st.binary(max_size=99), st.dictionaries(st.sampled_from('abc'), json_values))
def test_a_save_reads_back_unchanged(tmp_path_factory, payload, meta):
    folder = tmp_path_factory.mktemp('run')
    path = saves(folder).write(tensors(payload), meta)
    found = saves(folder).newest()
    assert found == (path, path.read_bytes(), meta)
    size = int.from_bytes(found.content[:8], 'little')
    assert found.content[8 + size:] == payload and size % 8 == 0
    header = json.loads(found.content[8:8 + size])
    assert header.pop('__metadata__').keys() == {'meta', 'digest'} and list(header) == ['w']


def test_only_the_newest_saves_are_kept(tmp_path):
    for number in range(5):
        saves(tmp_path).write(PAYLOAD, {'number': number})
    assert saves(tmp_path).newest().meta == {'number': 4}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f'checkpoint-00000{n}.safetensors' for n in (3, 4, 5)]


def test_what_cannot_be_deleted_fails_no_save_and_keeps_no_other(tmp_path):
    (tmp_path / 'checkpoint-000001.safetensors').mkdir()
    for number in range(5):
        saves(tmp_path, 1).write(PAYLOAD, {'number': number})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        'checkpoint-000001.safetensors', 'checkpoint-000006.safetensors']
    assert saves(tmp_path).newest().meta == {'number': 4}


def test_newest_is_none_without_saves(tmp_path):
    assert saves(tmp_path).newest() is None
    assert saves(tmp_path / 'not there').newest() is None


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << at % 8
    path.write_bytes(data)


@examples(60)
@given(st.integers(0, 10 ** 6), st.booleans())
def test_a_flipped_bit_anywhere_is_found_and_the_one_before_is_used(tmp_path_factory, at, first):
    folder = tmp_path_factory.mktemp('run')
    saves(folder).write(PAYLOAD, META)
    path = saves(folder).write(PAYLOAD, {**META, 'iteration': 8})
    # damage one of the first 300 bytes, with the header, or any byte
    flip(path, at % 300 if first else at)
    store = saves(folder)
    assert store.newest().meta['iteration'] == 7 and str(path) in store.skipped[0]


@pytest.mark.parametrize('damage', [
    lambda path: path.write_bytes(b''), lambda path: path.write_bytes(PAYLOAD),
    lambda path: path.write_bytes(path.read_bytes()[:-1]), lambda path: flip(path, 77),
    lambda path: path.write_bytes(b'\xff' * 8), lambda path: path.write_bytes(tensors(b'')[:20]),
    *(lambda path, text=text: path.write_bytes(len(text).to_bytes(8, 'little') + text)
      for text in (b'[]', b'{}', b'1', b'{"__metadata__": 1}', b'{"__metadata__": {}}'))])
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
    # a process that is killed while it writes leaves such a file
    (tmp_path / '.checkpoint-xyz').write_bytes(b'?')
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
store = Kept(Path(sys.argv[1]), 'checkpoint', 1)
content = (2).to_bytes(8, 'little') + b'{}' + bytes(5000)
for act in (store.probe, lambda: store.write(content, {})):
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
    found = saves(tmp_path).newest()
    assert found.meta == ({} if limit > 1000 else META)


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(DurableError, match='cannot be written'):
        saves(tmp_path / 'file' / 'out').probe()


def test_a_temporary_file_that_cannot_be_removed_is_an_error(tmp_path):
    (tmp_path / '.checkpoint-xyz').mkdir()
    for look in saves(tmp_path).tidy, saves(tmp_path).probe:
        with pytest.raises(DurableError, match='cannot be written'):
            look()
