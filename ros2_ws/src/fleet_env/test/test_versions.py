"""A version is there whole or not at all, the good ones stay, and every name leads to one."""

import errno
import json
import math
import os
import subprocess
import sys

import pytest
from fleet_env.errors import VersionError
from fleet_env.versions import Versions, check_digest, find_model, models_folder, newest_run
from written_versions import write


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_version_reads_back_as_it_was_written(tmp_path):
    first, second = write(Versions(tmp_path / 'models'), 0.5, math.nan)
    store = Versions(tmp_path / 'models')
    assert store.read(1) == first and (first.number, first.parent, first.accuracy) == (1, 0, .5)
    assert (second.number, second.parent, second.measured) == (2, 1, False)
    assert json.loads((store.path(2) / 'version.json').read_text())['accuracy'] is None
    assert os.readlink(store.folder / 'latest') == '2'
    assert (store.folder / 'latest' / 'model.safetensors').read_bytes() == b'weights 1'


def test_the_newest_the_best_and_what_latest_names_are_kept(tmp_path):
    store = Versions(tmp_path, keep=2)
    write(store, .9, .2, .3, .4, .9, .1, .2)
    assert store.numbers() == [5, 6, 7] and store.best() == 5
    (tmp_path / 'latest').unlink()
    (tmp_path / 'latest').symlink_to('5')     # a user goes back to a version
    write(store, .95)
    assert store.numbers() == [7, 8] and store.latest() == 8
    assert entries(tmp_path) == ['7', '8', 'latest']


def test_without_an_accuracy_only_the_newest_are_kept(tmp_path):
    store = Versions(tmp_path, keep=1)
    write(store, math.nan, math.nan)
    assert store.numbers() == [2] and store.best() == 0


@pytest.mark.parametrize('text, words', [
    ('', 'cannot be read'), ('[]', 'must be an object'), ('{}', "schema must be rog-version/1"),
    ('{"schema": "rog-version/9"}', "got 'rog-version/9'"),
    ('{"schema": "rog-version/1", "number": 1}', "lacks 'parent'"),
    ('{"schema": "rog-version/1", "number": true}', "'number' must be of type int"),
    ('[' * 100_000, 'cannot be read'), (None, 'no such file')])
def test_a_damaged_description_is_skipped_with_the_reason(tmp_path, text, words):
    store = Versions(tmp_path)
    write(store, .5, .6)
    file = tmp_path / '1' / 'version.json'
    file.unlink()
    if text is not None:
        file.write_text(text)
    assert [version.number for version in store.listed()] == [2]
    assert str(file) in store.skipped[0] and words in store.skipped[0]
    write(store, .7)
    assert store.latest() == 3


KILLED = """
import os, shutil, sys
from pathlib import Path
from fleet_env.versions import Versions
sys.path.insert(0, sys.argv[2])
from written_versions import ABOUT, write

STEPS = [(os, 'fsync'), (os, 'rename'), (os, 'replace'), (os, 'symlink'), (os, 'unlink'),
         (os, 'rmdir'), (os, 'mkdir')]

def killed_at(step, folder):
    '''Write a version in a process that ends at the given call that changes the disk.'''
    child = os.fork()
    if child == 0:
        calls = [0]
        def counted(call):
            def run(*given, **more):
                calls[0] += 1
                if calls[0] == step:
                    os._exit(9)
                return call(*given, **more)
            return run
        for module, name in STEPS:
            setattr(module, name, counted(getattr(module, name)))
        Versions(folder, 1).write(b'new', accuracy=.1, **ABOUT)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for step in range(1, 100):
    folder = Path(sys.argv[1]) / str(step)
    write(Versions(folder, 1), .5, .4)
    code = killed_at(step, folder)
    store = Versions(folder, 1)
    for number in store.numbers():
        known, file = store.read(number), store.path(number) / 'model.safetensors'
        assert file.read_bytes() == (b'new' if number == 3 else b'weights %d' % (number - 1)), step
    assert 1 in store.numbers() and store.latest() in (2, 3), (step, store.numbers())
    assert (folder / 'latest' / 'model.safetensors').exists(), step
    write(store, .3)
    assert store.latest() == max(store.numbers()) and 1 in store.numbers(), step
    assert not list(folder.glob('.*')), step
    if code == 0:
        print('steps', step - 1)
        break
"""


def test_a_kill_at_any_step_leaves_whole_versions_only(tmp_path):
    done = subprocess.run([sys.executable, '-c', KILLED, str(tmp_path), os.path.dirname(__file__)],
                          text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 10


FULL = """
import resource, signal, sys
from fleet_env.errors import VersionError
from fleet_env.versions import Versions
sys.path.insert(0, sys.argv[2])
from written_versions import ABOUT
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))   # beyond it a write fails
try:
    Versions(sys.argv[1]).write(bytes(6000), accuracy=.9, **ABOUT)
except VersionError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_former_versions_and_is_named(tmp_path):
    store = Versions(tmp_path)
    write(store, .5)
    done = subprocess.run([sys.executable, '-c', FULL, str(tmp_path), os.path.dirname(__file__)],
                          text=True, capture_output=True, timeout=60)
    assert f'{tmp_path}/2 cannot be written: ' in done.stdout, done
    assert entries(tmp_path) == ['1', 'latest'] and store.latest() == 1


def test_a_version_a_folder_of_versions_a_run_and_a_file_lead_to_the_weights(tmp_path):
    run = tmp_path / 'run'
    write(Versions(run / 'models'), .5, .6)
    latest, first = run / 'models/2/model.safetensors', run / 'models/1'
    for place in (run, run / 'models', run / 'models/2', latest):
        assert find_model(place) == latest
    assert find_model(run / 'models/latest').samefile(latest)
    assert find_model(str(first)) == first / 'model.safetensors'
    (run / 'models/latest').unlink()   # as after a crash while the first version was written
    assert find_model(run) == latest


def test_what_leads_to_no_weights_is_named_with_what_would(tmp_path):
    with pytest.raises(VersionError, match='there is no .*gone; give the file of a state_dict'):
        find_model(tmp_path / 'gone')
    with pytest.raises(VersionError, match=f'{tmp_path} has no model: it must be a version'):
        find_model(tmp_path)
    with pytest.raises(VersionError, match='neither a file nor a folder'):
        find_model('/dev/null')


def test_a_changed_model_is_not_taken_for_its_version(tmp_path):
    write(Versions(tmp_path), .5)
    file = tmp_path / '1' / 'model.safetensors'
    check_digest(file, file.read_bytes())
    with pytest.raises(VersionError, match='was changed after it was written'):
        check_digest(file, b'weights 1')
    check_digest(tmp_path / 'model.safetensors', b'of somebody else, without a description')


def test_on_a_disk_without_links_the_newest_version_is_the_latest(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, 'symlink', refused)
    store = Versions(tmp_path, keep=1)
    write(store, .9, .5)
    assert entries(tmp_path) == ['1', '2'] and store.latest() == 2
    assert find_model(tmp_path) == tmp_path / '2' / 'model.safetensors'


def test_the_newest_run_is_the_one_whose_model_was_written_last(tmp_path):
    assert newest_run(tmp_path.iterdir()) is None
    for name, time in (('b', 2), ('a', 3), ('c', 1)):
        (tmp_path / name / 'models').mkdir(parents=True)
        os.utime(tmp_path / name / 'models', (time, time))
    (tmp_path / 'd').mkdir()
    assert newest_run(tmp_path.iterdir()) == tmp_path / 'a'
    assert models_folder(tmp_path / 'a') == models_folder(tmp_path / 'a/models')


def test_a_chosen_version_stays_and_is_offered_until_another_choice(tmp_path):
    store = Versions(tmp_path, keep=2)
    write(store, .9, .2, .3)
    assert store.choose(-1) == 'version 2 is offered, and stays until another choice'
    write(store, .4, .5, .6)
    assert store.numbers() == [1, 2, 5, 6] and store.offered() == store.pinned() == 2
    assert store.choose(-1).startswith('version 1 ')
    for wrong, words in ((-1, 'no version before 1'), (3, 'must be one of 1, 2, 5, 6, got 3')):
        with pytest.raises(VersionError, match=words):
            store.choose(wrong)
        assert store.pinned() == 1
    assert store.choose(0) == 'version 6 is offered, the newest' and store.pinned() == 0
    assert Versions(tmp_path / 'none').offered() == 0
