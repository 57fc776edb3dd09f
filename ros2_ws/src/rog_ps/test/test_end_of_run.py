"""The end of a run waits for the robots and for the server's own evaluation, but not for ever."""

from types import SimpleNamespace

from fleet_ros.ending import HURRY
from rog_ps.ending import Ending

LIMIT, STOP_BY = 3.0, 60.0


def ending():
    """Return an end that waits for nobody, and what it looks at."""
    seen = SimpleNamespace(late=set(), busy=False)
    log = SimpleNamespace(info=lambda text: None, warning=lambda text: None)
    made = Ending(
        SimpleNamespace(members={}, stop_by=STOP_BY),
        SimpleNamespace(limit=LIMIT, log=log, paused=set()),
        SimpleNamespace(lacking=lambda present: seen.late, fault=lambda *what: None), seen)
    return made, seen


def test_it_is_over_when_the_server_has_evaluated_the_final_model():
    end, seen = ending()
    assert not end.is_over(0.0, False)
    seen.busy = True
    end.begin(0.0)
    # The evaluation takes longer than the server waits for a silent robot.
    assert not any(end.is_over(float(now), False) for now in range(int(4 * LIMIT)))
    seen.busy = False
    assert end.is_over(4 * LIMIT, False)


def test_an_evaluation_without_end_does_not_hold_up_the_end_of_the_run():
    end, seen = ending()
    seen.busy = True
    end.begin(0.0)
    assert not any(end.is_over(float(now), False) for now in range(int(STOP_BY)))
    assert end.is_over(STOP_BY, False)


def test_a_launcher_that_ends_the_server_leaves_the_evaluation_a_moment():
    end, seen = ending()
    end.begin(0.0)
    assert not end.hurry(1.0), 'there is nothing to wait for'
    end, seen = ending()
    seen.busy = True
    end.begin(0.0)
    assert end.hurry(1.0)
    assert not end.is_over(1.0 + HURRY / 2, False)
    assert end.is_over(1.0 + HURRY, False)
