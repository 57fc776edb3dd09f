"""rog trace as a user runs it: tables, files, and messages about errors."""

import argparse
import subprocess

import pytest
from fleet_env.errors import FleetEnvError, TraceError
from fleet_env.links.generate import generate
from fleet_env.links.trace import read_trace
from fleet_env.records.events import Iteration, RunWriter
from rog_cli.commands import trace

LINK = 'Connected to 04:f0:21:aa:bb:cc (on wlan0)\n\ttx bitrate: 65.0 MBit/s MCS 7\n'


def run(*arguments):
    parser = argparse.ArgumentParser(prog='rog')
    trace.add_to(parser.add_subparsers())
    options = parser.parse_args(['trace', *map(str, arguments)])
    return options.run(options)


def test_stats_lays_traces_side_by_side(capsys, tmp_path):
    mine = tmp_path / 'mine.txt'
    mine.write_text('0 100\n30 2\n60 100\n')
    assert run('stats', 'indoor', mine) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ['indoor', 'mine.txt']
    table = {line[:26].strip(): line[26:].split() for line in lines[1:]}
    assert table['mean, Mbit/s'] == ['91.0', '67.3']
    assert table['below 5 Mbit/s, %'] == ['0.0', '33.3']
    assert table['spell below 10, longest, s'][1] == '30.0'
    assert {'standard deviation', 'percentile 50', 'a 20 % change every, s',
            'autocorrelation, 0.5 s', 'autocorrelation, 10 s'} <= set(table)


@pytest.mark.parametrize('text, says', [
    ('', 'no samples'), ('0 1\n1 fast\n', "line 2: rate 'fast' is not a number"),
    ('0 1\n1 -3\n', 'line 2: .*negative'), ('1 1\n0 1\n', 'line 2: .*come after')])
def test_a_bad_trace_is_refused_with_its_line(tmp_path, text, says):
    path = tmp_path / 'bad.txt'
    path.write_text(text)
    with pytest.raises(TraceError, match=f'bad.txt.*{says}'):
        run('stats', path)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(TraceError, match='garage: there is no such file.*indoor, outdoor'):
        run('stats', 'garage')
    with pytest.raises(TraceError, match='indoor, outdoor'):
        run('generate', 'garage')
    with pytest.raises(TraceError, match='--step'):
        run('stats', 'indoor', '--step', 0)


def test_generate_writes_what_the_seed_decides(capsys, tmp_path):
    out = tmp_path / 'link.txt'
    assert run('generate', 'outdoor', '--seed', 3, '--minutes', 2, '--step', .5, '--out', out) == 0
    assert f'wrote {out}: 120 s' in capsys.readouterr().out
    found, expected = read_trace(out), generate('outdoor', 3, 120, .5)
    assert found.rates.tolist() == pytest.approx(expected.rates.tolist(), abs=1e-4)
    assert found.times.tolist() == expected.times.tolist()
    assert run('generate', 'outdoor', '--seed', 3, '--minutes', 2, '--step', .5) == 0
    assert capsys.readouterr().out == out.read_text()
    with pytest.raises(TraceError, match='duration'):
        run('generate', 'indoor', '--minutes', 0)
    with pytest.raises(TraceError, match='cannot be written'):
        run('generate', 'indoor', '--out', tmp_path / 'none' / 'x.txt')


def record(directory):
    with RunWriter(directory) as writer:
        for t, bandwidth, link_rate in ((1.0, 3, 4), (2.5, 8, float('nan')), (4.0, 0, 0)):
            for robot in ('robot1', 'robot2'):
                writer.write(Iteration(t, robot, int(t), .5, .1, .1, .1, bandwidth=bandwidth,
                                       link_rate=link_rate if robot == 'robot1' else 50.0))


def test_record_takes_the_link_of_one_robot_from_a_run(tmp_path):
    record(tmp_path)
    out = tmp_path / 'link.txt'
    run('record', '--run', tmp_path, '--robot', 'robot1', '--out', out)
    assert read_trace(out).rates.tolist() == pytest.approx([4, 4, 8, 8, 8, 0, 0, 0])
    run('record', '--run', tmp_path, '--robot', 'robot1', '--out', out, '--seconds', 3,
        '--step', '1')
    assert read_trace(out).rates.tolist() == pytest.approx([4, 8, 8])
    for given in ([], ['--robot', 'robot9']):
        with pytest.raises(TraceError, match='robot1, robot2'):
            run('record', '--run', tmp_path, *given, '--out', out)
    with pytest.raises(FleetEnvError, match='run.jsonl'):
        run('record', '--run', tmp_path / 'none', '--robot', 'robot1', '--out', out)


class Wifi:
    """Replaces ``iw`` and the clock: a call takes no time, a sleep takes the requested time."""

    def __init__(self, answers):
        self.answers, self.now = list(answers), 10.0

    def run(self, command, **_):
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        code = 0 if answer in (LINK, 'Not connected.\n') else 237
        return subprocess.CompletedProcess(command, code, answer, 'No such device (-19)')

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def wifi(monkeypatch):
    def use(*answers):
        found = Wifi(answers)
        monkeypatch.setattr(trace.subprocess, 'run', found.run)
        monkeypatch.setattr(trace.time, 'sleep', found.sleep)
        monkeypatch.setattr(trace.time, 'monotonic', lambda: found.now)
    return use


def test_record_asks_iw_until_the_time_is_over(tmp_path, wifi):
    out = tmp_path / 'link.txt'
    wifi(LINK, LINK, 'Not connected.\n', LINK)
    assert run('record', '--iface', 'wlan0', '--out', out, '--seconds', 2) == 0
    assert read_trace(out).rates.tolist() == [65, 65, 0, 65]
    assert 'wlan0' in out.read_text().splitlines()[0]


def test_ctrl_c_ends_a_record_and_keeps_it(capsys, tmp_path, wifi):
    out = tmp_path / 'link.txt'
    wifi(LINK, LINK, LINK, KeyboardInterrupt())
    assert run('record', '--iface', 'wlan0', '--out', out) == 0
    assert read_trace(out).rates.tolist() == [65, 65, 65]
    assert 'interrupted' in capsys.readouterr().err


@pytest.mark.parametrize('answer, says', [
    (FileNotFoundError(), 'iw is not installed.*--run'),
    ('', "cannot measure 'wlan0'.*No such device"),
    (KeyboardInterrupt(), 'nothing was recorded')])
def test_record_says_why_it_cannot(tmp_path, wifi, answer, says):
    wifi(answer)
    with pytest.raises(TraceError, match=says):
        run('record', '--iface', 'wlan0', '--out', tmp_path / 'link.txt')
    assert not (tmp_path / 'link.txt').exists()


def test_a_source_is_needed():
    with pytest.raises(SystemExit):
        run('record', '--out', 'x.txt')
