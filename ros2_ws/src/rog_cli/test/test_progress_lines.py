"""The lines that show the progress of long work."""

import math

import pytest
from fleet_env.settings.base import changed
from fleet_env.settings.fleet_file import load_fleet
from rog_bringup import FLEETS
from rog_cli.display.progress import ProgressLines, longest, runs_progress


def lines(capsys, told, seconds=600.0):
    """Return what is printed if the shares ``told`` are told at their times."""
    now = [0.0]
    progress = ProgressLines('run', seconds, lambda: now[0])
    for now[0], share in told:
        progress(share)
    return capsys.readouterr().out.splitlines()


def test_short_work_shows_its_quarters(capsys):
    assert lines(capsys, [(0.1 * k, k / 10) for k in range(11)]) == [
        'run: 25 %, about 1 s left', 'run: 50 %, about 0 s left', 'run: 75 %, about 0 s left',
        'run: 100 %']


def test_long_work_shows_how_far_it_is_after_seconds_and_then_less_and_less_often(capsys):
    shown = lines(capsys, [(t, t / 1000) for t in range(0, 101)])
    assert shown[0] == 'run: 0.2 %, virtual 1 s of 600, about 17 min left'
    times = [float(line.split()[1]) * 10 for line in shown]
    assert times == [2, 6, 14, 30, 62]


def test_work_without_a_virtual_time_shows_its_share_alone(capsys):
    assert lines(capsys, [(3, 0.1)], 0.0) == ['run: 10.0 %, about 27 s left']


def test_runs_that_finish_say_how_long_the_others_take_but_not_by_those_that_were_resumed(
        capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr('time.monotonic', lambda: now[0])
    with runs_progress(6) as progress:
        for now[0], seed in ((0.0, 1), (0.0, 2), (10.0, 3), (20.0, 4), (30.0, 5), (40.0, 6)):
            progress('bsp', seed)
    shown = capsys.readouterr().out.splitlines()
    assert ['left' in line for line in shown] == [False, False, True, True, True, False]
    assert shown[2] == 'bsp, seed 3: done (3 of 6 runs), about 30 s left'


@pytest.mark.parametrize(('runs', 'jobs', 'minutes'), [
    (1, None, 23), (4, None, 90), (2, 1, 90)])
def test_the_longest_time_of_runs_is_that_of_robots_that_never_wait(
        monkeypatch, runs, jobs, minutes):
    monkeypatch.setattr('os.sched_getaffinity', lambda of: {0, 1})
    fleet = load_fleet('outdoor', [FLEETS])   # three robots, one minute, 0.4 s a gradient
    assert longest(fleet, math.nan) == '' and longest(
        changed(fleet, robots=(changed(fleet.robots[0], pace=0.0),)), 1.0) == ''
    said = longest(fleet, 4.0, runs, jobs)
    assert said == (f'the training takes at most about {minutes} min on this machine, '
                    'without its evaluations')
