"""Tests of runs in one process, in several processes and on a cluster.

In all three cases the runs give the same results and end cleanly.
"""

import errno
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import made_up_runs
import psutil
import pytest
import virtual_fleet
from fleet_env.errors import TraceError
from fleet_env.settings.fleet_file import with_overrides
from fleet_testing import LIMIT, mostly_long
from rog_core.errors import ConfigError
from rog_sim import jobs
from rog_sim.compare import compare
from rog_sim.jobs import RunError


def run(fleet, out, methods=('bsp', 'rsp:4'), seeds=2, **options):
    options = {'workers': 2, 'simulate': made_up_runs.simulate, **options}
    return compare(fleet, methods, seeds, out, **options)


def environment():
    """Return the environment for child processes.

    `PYTHONPATH` lists the folders of this process's modules and of the test modules.
    """
    path = [str(Path(made_up_runs.__file__).parent), *filter(None, sys.path)]
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(path)}


def files(directory):
    return {path.relative_to(directory): path.read_bytes()
            for path in sorted(directory.rglob('*')) if path.is_file()}


@contextmanager
def started(*arguments, says):
    """Run a program of Dask until the block ends.

    Yield the first line of its output that matches ``says``.
    """
    process = subprocess.Popen([sys.executable, '-m', 'dask', *arguments], text=True,
                               env=environment(), stderr=subprocess.PIPE)
    try:
        yield next(found for line in process.stderr if (found := re.search(says, line)))[0]
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


@pytest.fixture(scope='module')
def scheduler():
    """Yield the address of a Dask scheduler without workers."""
    pytest.importorskip('distributed')
    with started('scheduler', '--host', '127.0.0.1', '--port', '0', '--no-dashboard', '--no-show',
                 says=r'tcp://127.0.0.1:\d+') as address:
        yield address


@pytest.fixture(scope='module')
def cluster(scheduler, tmp_path_factory):
    """Yield the address of a Dask scheduler with one worker that has two threads."""
    with started('worker', scheduler, '--nthreads', '2', '--no-nanny', '--no-dashboard',
                 '--local-directory', str(tmp_path_factory.mktemp('worker')),
                 says='Starting established connection'):
        yield scheduler


def test_a_scheduler_without_workers_is_refused(fleet, tmp_path, scheduler, monkeypatch):
    monkeypatch.setattr('rog_sim.jobs.ANSWER_S', 0.5)
    with pytest.raises(ConfigError, match='has no workers; start it with `dask scheduler`'):
        run(fleet, tmp_path / 'out', cluster=scheduler)


@pytest.mark.parametrize('address', ['tcp://127.0.0.1:9', 'nowhere://'])
def test_a_scheduler_that_does_not_answer_is_refused(fleet, tmp_path, monkeypatch, address):
    pytest.importorskip('distributed')
    monkeypatch.setattr('rog_sim.jobs.ANSWER_S', 0.5)
    with pytest.raises(ConfigError, match=f'no Dask scheduler answers at {address} within 0.5 s'):
        run(fleet, tmp_path / 'out', cluster=address)
    assert not (tmp_path / 'out').exists()


def test_without_distributed_it_says_what_to_install(fleet, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'distributed', None)
    with pytest.raises(ConfigError, match='pip install distributed'):
        run(fleet, tmp_path / 'out', cluster='tcp://127.0.0.1:8786')


def test_results_are_the_same_in_one_process_in_two_and_on_a_cluster(tmp_path, cluster):
    fleet = virtual_fleet.fleet_of(tmp_path, minutes=.1)
    for name, options in (('serial', {'workers': 1}), ('two', {'workers': 2}),
                          ('cluster', {'cluster': cluster})):
        compare(fleet, ['bsp', 'rsp:4'], 1, tmp_path / name, **options)
    serial = files(tmp_path / 'serial')
    assert len(serial) == 2 * len(('run.jsonl', 'summary.json', 'fleet.yaml')) + 1
    assert files(tmp_path / 'two') == serial == files(tmp_path / 'cluster')


@pytest.mark.long
def test_sixteen_seeds_of_two_methods_go_side_by_side_on_a_cluster(tmp_path, scheduler):
    fleet, methods = virtual_fleet.fleet_of(tmp_path, minutes=.05), ['rsp:4', 'local:2']
    with started('worker', scheduler, '--nworkers', '2', '--nthreads', '1', '--no-dashboard',
                 '--local-directory', str(tmp_path / 'workers'),
                 says='Starting established connection'):
        compare(fleet, methods, 16, tmp_path / 'cluster', cluster=scheduler)
    compare(fleet, methods, 16, tmp_path / 'serial', workers=1)
    assert files(tmp_path / 'cluster') == files(tmp_path / 'serial')


def test_a_link_that_is_none_is_refused_before_anything_runs_on_a_cluster(tmp_path, cluster):
    fleet = virtual_fleet.fleet_of(tmp_path)
    (tmp_path / 'link2.txt').write_text('0 fast')
    with pytest.raises(TraceError, match='link2.txt'):
        compare(fleet, ['bsp'], 1, tmp_path / 'out', cluster=cluster)


def test_a_run_that_fails_is_named_and_ends_the_others(fleet, tmp_path):
    with pytest.raises(RunError, match='asp, seed 2: the model diverged'):
        run(fleet, tmp_path / 'out', ['asp', 'bsp'], workers=1)
    assert (tmp_path / 'out' / 'asp' / 'seed1' / 'summary.json').exists()
    assert not list((tmp_path / 'out' / 'bsp').rglob('*.*'))  # no run of bsp has begun
    assert not (tmp_path / 'out' / 'comparison.json').exists()


def test_a_run_that_fails_in_another_process_ends_those_that_would_never(fleet, tmp_path):
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(RunError, match='asp, seed 2: the model diverged'):
        run(with_overrides(fleet, {'seed': 2}), tmp_path / 'out', ['bsp', 'asp'], 1,
            simulate=made_up_runs.endless_or_failing)
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [process for process in left if 'resource_tracker' not in str(process.cmdline())]


def test_a_run_that_fails_on_a_cluster_ends_the_others_there_too(fleet, tmp_path, cluster):
    """A failed run and a KeyboardInterrupt end the other runs on the cluster.

    The cluster has one worker. So the last call of ``run`` returns only if the endless runs no
    longer use this worker.
    """
    with pytest.raises(RunError, match='asp, seed 2: the model diverged'):
        run(fleet, tmp_path / 'out', ['asp', 'bsp'], cluster=cluster)
    with pytest.raises(KeyboardInterrupt):
        run(fleet, tmp_path / 'interrupted', ['rsp:4', 'bsp'], cluster=cluster,
            simulate=made_up_runs.endless_after_the_first, progress=interrupted)
    run(fleet, tmp_path / 'again', cluster=cluster)


def interrupted(label, seed):
    raise KeyboardInterrupt


def test_a_process_that_is_killed_is_reported(fleet, tmp_path):
    with pytest.raises(RunError, match='a process was killed; is there enough memory'):
        run(fleet, tmp_path / 'out', simulate=made_up_runs.killed)


@pytest.mark.long
def test_resume_reuses_what_is_whole_and_repeats_what_was_cut_off(fleet, tmp_path):
    out = tmp_path / 'out'
    first = run(fleet, out)
    kept = out / 'bsp' / 'seed1' / 'summary.json'
    when = kept.stat().st_mtime_ns
    (out / 'bsp' / 'seed2' / 'summary.json').unlink()
    again = run(fleet, out, resume=True)
    assert kept.stat().st_mtime_ns == when
    assert again.methods == first.methods


def test_runs_that_are_there_are_never_overwritten(fleet, tmp_path):
    out = tmp_path / 'out'
    run(fleet, out, ['bsp'], 1)
    with pytest.raises(ConfigError, match='already holds a run'):
        run(fleet, out, ['bsp'], 1)
    changed = with_overrides(fleet, {'minutes': 5})
    with pytest.raises(ConfigError, match='other settings'):
        run(changed, out, ['bsp'], 1, resume=True)


def test_runs_of_a_version_that_lacked_a_setting_are_reused(fleet, tmp_path):
    out = tmp_path / 'out'
    run(fleet, out, ['bsp'], 1)
    settings, summary = (out / 'bsp' / 'seed1' / name for name in ('fleet.yaml', 'summary.json'))
    when, written = summary.stat().st_mtime_ns, settings.read_text()
    settings.write_text(written.replace('  drop_time: 0.0\n', ''))
    assert settings.read_text() != written
    run(fleet, out, ['bsp'], 1, resume=True)
    assert summary.stat().st_mtime_ns == when


def test_results_that_should_go_below_a_file_are_refused(fleet, tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(ConfigError, match='file is not a directory; choose another'):
        run(fleet, tmp_path / 'file' / 'out', ['bsp'], 1)


SCRIPT = """
import sys
from pathlib import Path
import made_up_runs
from fleet_env.settings.fleet_file import read_fleet
from rog_sim.compare import compare
if __name__ == '__main__':
    fleet, out = read_fleet(sys.argv[1]), Path(sys.argv[2])
    try:
        compare(fleet, ['bsp', 'asp'], 2, out, 2, simulate=made_up_runs.endless)
    except KeyboardInterrupt:
        print('stopped')
"""


@pytest.mark.parametrize('number', mostly_long([signal.SIGINT, signal.SIGKILL], signal.SIGINT))
def test_no_process_is_left_behind(fleet, tmp_path, number):
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), fleet.file, str(tmp_path / 'out')], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    assert [process.stdout.readline() for _ in range(2)] == ['started\n', 'started\n']
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # send the signal to every process, as a terminal does
    else:
        process.kill()
    # Every process keeps the pipes open, so the pipes close only when the last process has ended.
    rest, errors = process.communicate(timeout=LIMIT)
    if number == signal.SIGINT:
        # The signal also ends the process of a run. Before this process ends, it can begin the
        # next run, so the output can contain more lines `started`.
        assert process.returncode == 0 and rest.replace('started\n', '') == 'stopped\n'
        assert errors == ''


def test_a_machine_without_semaphores_says_where_they_are(fleet, tmp_path, monkeypatch):
    def full():
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(jobs.multiprocessing, 'Lock', full)
    with pytest.raises(ConfigError, match='/dev/shm: No space left on device'):
        run(fleet, tmp_path)
