"""Long preparations of a task say how far they are, and how long the rest takes."""

from rog_tasks import cache


def test_a_long_operation_says_how_far_it_is_and_how_long_the_rest_takes(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr(cache.time, 'monotonic', lambda: now)
    progress = cache.Progress('reading', 1000)
    for _ in range(4):
        now += 3.0
        progress.step()
    assert capsys.readouterr().err.splitlines() == [
        'reading: 0 %, about 50 min left', 'reading: 0 %, about 50 min left']
