"""Kept weights are what was sent, or are not found."""

import hashlib
import os
import resource

import pytest
from fleet_compute.weights import StoreSettings, Weights
from fleet_env.errors import SettingError


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def test_weights_that_are_too_many_go_in_order_of_use(tmp_path):
    weights = Weights(250, tmp_path)
    a, b, c, large = (letter * 100 for letter in (b'a', b'b', b'c', b'ddd'))
    for data in (a, b):
        weights.keep(data, digest_of(data))
    for data, age in ((a, 2), (b, 3)):
        os.utime(tmp_path / digest_of(data), ns=(0, age))
    mapped = weights.find(digest_of(a), 100)
    weights.keep(c, digest_of(c))
    assert weights.find(digest_of(b), 100) is None and weights.used == 200
    assert weights.keep(large, digest_of(large)) is None and weights.used == 200
    os.utime(tmp_path / digest_of(a), ns=(0, 0))
    weights.keep(b, digest_of(b))
    # A session that has mapped a weight can use it even after its file is deleted.
    assert weights.find(digest_of(a), 100) is None and bytes(mapped) == a


def test_without_room_nothing_is_kept(tmp_path):
    assert Weights().keep(b'abc', digest_of(b'abc')) is None
    assert Weights(100, tmp_path).keep(b'', digest_of(b'')) is None


@pytest.mark.parametrize('left', range(4))
def test_weights_are_an_optimisation_without_file_descriptors(left, tmp_path):
    weights, data = Weights(1 << 20, tmp_path), b'abc'
    assert weights.keep(data, digest_of(data)) is not None
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # `lowest` as the limit leaves `left` descriptors.
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(left)]
    lowest = os.dup(0)
    os.close(lowest)
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        weights.find(digest_of(data), 3)
        weights.keep(b'def', digest_of(b'def'))
        assert weights.used in (0, 3, 6)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize('damage', [lambda data: data[:-1] + b'?', lambda data: data[:-1],
                                    lambda data: b''])
def test_a_weight_that_was_damaged_is_not_found_and_can_be_kept_again(damage, tmp_path):
    data = bytes(range(200))
    digest = digest_of(data)
    Weights(1 << 20, tmp_path).keep(data, digest)
    (tmp_path / digest).write_bytes(damage(data))
    after = Weights(1 << 20, tmp_path)      # a restart
    assert after.find(digest, 200) is None
    assert not after.read(digest, memoryview(bytearray(200)))
    assert bytes(after.keep(data, digest)) == data
    read = bytearray(200)
    assert after.read(digest, memoryview(read)) and read == data
    assert bytes(Weights(1 << 20, tmp_path).find(digest, 200)) == data


def test_a_weight_is_checked_once_for_all_processes_that_share_marks(tmp_path, monkeypatch):
    for name in ('weights', 'proved'):
        (tmp_path / name).mkdir()
    data, hashed = b'abc' * 99, []
    digest = digest_of(data)
    assert Weights(1 << 20, tmp_path / 'weights').keep(data, digest) is not None
    real = hashlib.sha256
    monkeypatch.setattr(hashlib, 'sha256', lambda found: hashed.append(1) or real(found))
    for _ in range(3):
        found = Weights(1 << 20, tmp_path / 'weights', tmp_path / 'proved').find(digest, len(data))
        assert bytes(found) == data
    assert len(hashed) == 1


def test_what_was_used_stays(tmp_path):
    kept = Weights(300, tmp_path)
    datas = [bytes([k]) * 100 for k in range(4)]
    for age, data in enumerate(datas[:3]):
        kept.keep(data, digest_of(data))
        os.utime(tmp_path / digest_of(data), ns=(age, age))
    kept.use(digest_of(datas[0]))
    kept.use('0' * 64)
    kept.keep(datas[3], digest_of(datas[3]))
    assert [kept.has(digest_of(data), 100) for data in datas] == [True, False, True, True]
    assert kept.has('0' * 64, 0) and not kept.has(digest_of(datas[0]), 99)


def test_a_folder_that_cannot_be_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    assert StoreSettings().make_directory() == tmp_path / 'cache' / 'fleet'
    (tmp_path / 'file').write_text('')
    with pytest.raises(SettingError, match='parameter directory must be a folder or a new one'):
        StoreSettings(directory=str(tmp_path / 'file')).make_directory()
    settings = StoreSettings(directory=str(tmp_path / 'new' / 'one'), disk=1)
    kept = settings.kept_weights()
    assert bytes(kept.keep(b'abc', digest_of(b'abc'))) == b'abc' and kept.limit == 1 << 20
