"""The lines that show the progress of long work."""

from rog_cli.display.progress import ProgressLines


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
