"""rog sim as a user runs it: exit codes, files, messages."""

import argparse
import os
import re
import signal
import subprocess
import sys

import pytest
from fleet_env.links.trace import read_trace
from fleet_env.records.events import read_run
from fleet_env.records.summary import read_summary
from fleet_env.settings.fleet_file import read_fleet
from fleet_testing import LIMIT, PROGRAMS, Forked
from rog_cli.commands.fleet_options import add_fleet_options, chosen_fleet
from rog_cli.main import main

TASK = '''
import itertools
import os

import torch


class Line:
    """Fits a line."""

    batch_size = 4

    def __init__(self, seed=0):
        self.seed = seed

    def model(self):
        torch.manual_seed(1)
        return torch.nn.Linear(60, 20)

    def batches(self, rank, world):
        generator = torch.Generator().manual_seed(self.seed + rank)
        while True:
            yield torch.randn(self.batch_size, 60, generator=generator)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def evaluate(self, model):
        return 1 / (1 + float(model.weight.detach().square().sum()))


class Mistaken(Line):
    """Its loss has a mistake that only a library notices."""

    def loss(self, model, batch):
        return torch.nn.functional.mse_loss(model(batch), 'nothing')


class Apart(Line):
    """Its loss has lost the model."""

    def loss(self, model, batch):
        return model(batch).square().mean().detach()


class NotANumber(Line):
    """Divides zero by zero."""

    def loss(self, model, batch):
        return super().loss(model, batch) * float('nan')


class WrongOnOne(Line):
    """The second robot has NaN in its third batch."""

    def batches(self, rank, world):
        for count, batch in enumerate(super().batches(rank, world)):
            yield batch * float('nan') if (rank, count) == (1, 2) else batch


class Unmeasured(Line):
    """Has a mistake in what is called before the robots start."""

    def evaluate(self, model):
        raise ValueError('no\\nno')


class Dying(Line):
    """Its process ends, as by the kernel for lack of memory."""

    def loss(self, model, batch):
        os._exit(9)


class Leaving(Line):
    """Ends the program, before the first gradient."""

    def evaluate(self, model):
        raise SystemExit(0)


class Talking(Line):
    """Each of its processes says once that it is under way."""

    steps = itertools.count()

    def loss(self, model, batch):
        if next(self.steps) == 50:
            os.write(1, b'under way\\n')  # at once: each robot has a process
        return super().loss(model, batch)
'''
FLEET = '''
name: mine
seed: 2
minutes: 0.5
training: {task: 'a_line:Line', pace: 0.4, codec: raw}
link: {trace: link.txt}
robots: [{name: robot1}, {name: robot2}]
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write a fleet file and everything that it needs; return its path."""
    (tmp_path / 'a_line.py').write_text(TASK)
    (tmp_path / 'link.txt').write_text('0 8\n5 2\n')
    (tmp_path / 'mine.yaml').write_text(FLEET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / 'mine.yaml'


@pytest.fixture(autouse=True)
def undrawn(monkeypatch, request):
    """Draw no figures, which take longer than the runs, except where a test looks at them."""
    if 'says_where_the_results_are' not in request.node.name:
        monkeypatch.setattr('rog_sim.figures.draw_run', lambda directory: [])


def sim(capsys, fleet, *arguments):
    code = main(['sim', str(fleet), *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_it_runs_a_fleet_and_says_where_the_results_are(capsys, mine, tmp_path):
    out = tmp_path / 'out'
    code, text, error = sim(capsys, mine, '--sync', 'bsp', '--out', str(out))
    assert (code, error) == (0, '')
    assert 'mine, bsp: 25 %' in text and 'mine, bsp: 100 %' in text
    # the table has no columns for a shift, because this task's data does not change during a run
    assert 'at the' in text and 'shift' not in text
    assert '0.5 minutes of 2 robots in' in text and f'Results in {out}:' in text
    for name in ('run.jsonl', 'summary.json', 'run.png', 'run.svg'):
        assert str(out / name) in text.split() and (out / name).stat().st_size > 0
    summary = read_summary(out)
    assert (summary.sync, summary.seed, summary.duration_s) == ('bsp', 2, 30)
    assert (summary.fleet, summary.task) == ('mine', 'a_line:Line')
    assert all(10 < robot.iterations < 75 for robot in summary.robots.values())
    assert max(event.t for event in read_run(out)) == 30


def test_a_task_beside_the_fleet_file_is_found_from_anywhere(capsys, mine, tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / 'team', tmp_path / 'elsewhere'
    for path in (folder, elsewhere):
        path.mkdir()
    monkeypatch.setattr(sys, 'path', [p for p in sys.path if p != str(tmp_path)])
    monkeypatch.setenv('PYTHONPATH', '')
    monkeypatch.chdir(elsewhere)
    options = [str(folder / 'team.yaml'), '--minutes', '0.05', '--out', 'out']
    (folder / 'link.txt').write_text('0 8\n')
    (folder / 'team.yaml').write_text(FLEET.replace('a_line', 'beside_the_fleet'))
    code, _, error = sim(capsys, *options)
    assert code == 2 and "there is no module 'beside_the_fleet'" in error
    assert 'beside the fleet file' in error and not (elsewhere / 'out' / 'run.jsonl').exists()
    (folder / 'beside_the_fleet.py').write_text(TASK)
    assert sim(capsys, *options)[0] == 0
    # with this path the processes of robots find the task
    assert str(folder) in os.environ['PYTHONPATH'].split(os.pathsep)


@pytest.mark.long
def test_results_have_a_directory_of_their_own_by_default(capsys, mine, tmp_path):
    code, text, _ = sim(capsys, mine, '--minutes', '0.1', '--sync', 'rsp:4+pipeline')
    (out,) = (tmp_path / 'runs').iterdir()
    assert code == 0 and f'Results in runs/{out.name}:' in text
    assert out.name.startswith('sim-mine-rsp4+pipeline-')


def test_options_change_the_fleet(capsys, mine, tmp_path):
    (tmp_path / 'other.txt').write_text('0 0.5\n9 0.5\n')
    out = tmp_path / 'out'
    code, _, _ = sim(capsys, mine, '--minutes', '0.2', '--seed', '9', '--robots', '3', '--trace',
                     str(tmp_path / 'other.txt'), '--set', 'training.pace=0.3', '--out', str(out))
    summary = read_summary(out)
    assert code == 0 and (summary.seed, summary.duration_s) == (9, 12)
    assert list(summary.robots) == ['robot1', 'robot2', 'robot3']
    rates = {event.link_rate for event in read_run(out) if hasattr(event, 'link_rate')}
    assert rates == {0.5}


def test_a_link_recorded_from_a_run_is_replayed_at_its_own_rates(capsys, mine, tmp_path):
    mine.write_text(FLEET.replace('link.txt', 'link.txt, scale: 0.05'))
    traces = []
    for name, more in (('first', []), ('again', ['--trace', str(tmp_path / 'first.txt')])):
        assert sim(capsys, mine, *more, '--out', str(tmp_path / name))[0] == 0
        traces.append(tmp_path / f'{name}.txt')
        assert main(['trace', 'record', '--run', str(tmp_path / name), '--robot', 'robot1',
                     '--out', str(traces[-1])]) == 0
    first, again = map(read_trace, traces)
    assert 0.1 < first.mean < 0.4 and again.mean == pytest.approx(first.mean, rel=0.2)


@pytest.mark.parametrize(('arguments', 'scales'), [
    ([], [0.05, 0.05, 0.5, 0.05]),
    # with a built-in trace, the scales in the fleet file still apply
    (['--trace', 'outdoor'], [0.05, 0.05, 0.5, 0.05]),
    (['--trace', 'mine.txt'], [1, 0.05, 1, 1]),
    (['--trace', 'mine.txt', '--set', 'link.scale=0.3'], [0.3, 0.3, 0.5, 0.3]),
    (['--trace', 'mine.txt', '--set', 'robots.robot1.link.scale=0.05'], [0.05, 0.05, 1, 1]),
])
def test_a_file_given_by_trace_has_true_rates_unless_a_scale_is_set(mine, tmp_path, arguments,
                                                                    scales):
    (tmp_path / 'mine.txt').write_text('0 1\n9 2\n')
    mine.write_text("""
        name: mine
        link: {trace: outdoor, scale: 0.05}
        robots: [{name: robot1}, {name: robot2, link: {trace: link.txt}},
                 {name: robot3, link: {scale: 0.5}}]
    """)
    parser = argparse.ArgumentParser()
    add_fleet_options(parser)
    fleet = chosen_fleet(parser.parse_args([str(mine), '--robots', '4', *arguments]))
    assert [robot.link.scale for robot in fleet.robots] == scales


@pytest.mark.long
def test_the_same_seed_gives_the_same_files(capsys, mine, tmp_path):
    for name, seed in (('a', '5'), ('b', '5'), ('c', '6')):
        assert sim(capsys, mine, '--seed', seed, '--out', str(tmp_path / name))[0] == 0
    read = {name: [(tmp_path / name / file).read_bytes() for file in ('run.jsonl', 'summary.json')]
            for name in 'abc'}
    assert read['a'] == read['b'] and not set(read['a']) & set(read['c'])


@pytest.mark.long
def test_a_published_models_traffic_takes_longer(capsys, mine, tmp_path):
    for name, more in (('own', []), ('published', ['--traffic', 'convmlp-m'])):
        assert sim(capsys, mine, '--out', str(tmp_path / name), *more)[0] == 0
    own, published = (read_summary(tmp_path / n).robots['robot1'] for n in ('own', 'published'))
    assert published.iterations < own.iterations / 3


@pytest.mark.parametrize(('arguments', 'says'), [
    (['--sync', 'rps:4'], ["'rps:4' is unknown", 'bsp, ssp:S, asp, dssp:LOW:HIGH, flown, rsp:T']),
    (['--sync', 'bsp,rsp:4'], ["'bsp,rsp:4' is unknown"]),
    (['--sync', 'dssp:15:3'], ['the lowest threshold, 15, is above the highest, 3']),
    (['--sync', 'dssp:3'], ['a lowest and a highest', 'dssp:3:15']),
    (['--sync', 'rsp:0'], ["'0' in 'rsp:0' must be 1 to 1000"]),
    (['--sync', 'rsp:4+fast'], ["rsp has no option 'fast'", 'pipeline, sparse']),
    (['--robots', '0'], ['--robots 0', '1 to 1000']),
    (['--robots', 'two'], ['--robots two']),
    (['--minutes', '0'], ['minutes', 'greater than 0']),
    (['--seed', '-1'], ['seed', 'at least 0']),
    (['--traffic', 'resnet'], ["'resnet'", 'convmlp-m']),
    (['--trace', 'nowhere.txt'], ['nowhere.txt', 'indoor']),
    (['--set', 'training.task=a_line:Curve'], ["'Curve'"]),
])
def test_a_bad_choice_is_refused_before_anything_is_written(capsys, mine, tmp_path, arguments,
                                                            says):
    refused(capsys, mine, tmp_path, arguments, says)


def refused(capsys, mine, tmp_path, arguments, says):
    out = tmp_path / 'out'
    code, text, error = sim(capsys, mine, '--out', str(out), *arguments)
    said = '(mine, .*: loading the task a_line:.*\n(Linear: .*\nthe training takes .*\n)?)?'
    assert code == 2 and re.fullmatch(said, text)
    assert error.startswith('rog: ') and error.count('\n') == 1
    for part in says:
        assert part in error
    assert not out.exists()


@pytest.mark.parametrize(('text', 'says'), [
    ('', ['no samples']),
    ('# only words\n', ['no samples']),
    ('0 5\n2 6\n1 7\n', ['line 3', 'sort']),
    ('0 5\n1 -2\n', ['line 2', 'negative']),
    ('0 5\n\n1 fast\n', ['line 3', "'fast' is not a number"]),
    ('0 5\n1 nan\n', ['line 2', 'not finite']),
    ('0 5 7\n', ['line 1', '3 columns']),
])
def test_a_bad_trace_is_refused_with_its_line(capsys, mine, tmp_path, text, says):
    (tmp_path / 'bad.txt').write_text(text)
    refused(capsys, mine, tmp_path, ['--trace', 'bad.txt'], ['bad.txt', *says])


def test_a_process_that_is_killed_is_named_without_a_traceback(capsys, mine, tmp_path):
    code, _, error = sim(capsys, mine, '--out', str(tmp_path / 'out'), '--set',
                         'training.task=a_line:Dying')
    assert code == 1 and 'was killed' in error and 'Traceback' not in error


@pytest.mark.parametrize('task, what, where', [
    ('Mistaken', 'AttributeError: ', 'in loss'), ('Unmeasured', 'ValueError: no', 'in evaluate')])
def test_a_mistake_in_a_task_is_one_line_with_its_place_and_a_file_has_the_traceback(
        capsys, mine, tmp_path, task, what, where):
    code, _, error = sim(capsys, mine, '--out', 'out', '--set', f'training.task=a_line:{task}')
    found = re.fullmatch(rf'rog: the task failed: {what}.*\(a_line\.py line (\d+), {where}\); '
                         r'out/traceback\.txt has the traceback\n', error)
    assert code == 1 and found, error
    kept = (tmp_path / 'out/traceback.txt').read_text()
    assert f'line {found[1]}, {where}' in kept and 'Traceback' in kept


def test_a_task_that_calls_sys_exit_does_not_end_the_program_as_if_all_were_well(
        capsys, mine, tmp_path):
    code, _, error = sim(capsys, mine, '--out', str(tmp_path / 'out'), '--set',
                         'training.task=a_line:Leaving')
    assert code == 1 and 'called sys.exit(0)' in error


@pytest.mark.long
def test_who_has_closed_the_output_still_gets_the_files(mine, tmp_path):
    script = f'"{sys.executable}" -m rog_cli.main sim mine.yaml --minutes 0.05 --out out'
    done = subprocess.run(['bash', '-c', f'{script} <&- >&- 2>&-'], cwd=tmp_path, timeout=LIMIT,
                          check=False)
    assert done.returncode == 0 and (tmp_path / 'out/summary.json').exists()


def test_who_reads_only_the_beginning_is_told_nothing_more(mine, tmp_path):
    script = f'"{sys.executable}" -m rog_cli.main sim mine.yaml --minutes 0.05 --out out'
    done = subprocess.run(['bash', '-c', f'{script} | head -n 0; exit ${{PIPESTATUS[0]}}'],
                          capture_output=True, cwd=tmp_path, timeout=LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (141, b'', b'')


def test_names_with_an_umlaut_are_good_in_any_locale(mine, tmp_path):
    folder = tmp_path / 'g\u00e4rten'
    folder.mkdir()
    text = mine.read_text(encoding='utf-8')
    text = re.sub('(?m)^name: .*', 'name: g\u00e4rten', text)
    (folder / 'gr\u00f6\u00dfe.yaml').write_text(text, encoding='utf-8')
    (folder / 'link.txt').write_text('0 8\n')
    done = subprocess.run(
        [sys.executable, '-m', 'rog_cli.main', 'sim', 'gr\u00f6\u00dfe.yaml', '--minutes', '0.01'],
        capture_output=True, cwd=folder, timeout=LIMIT,
        env={**os.environ, 'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONPATH': os.pathsep.join(
            [str(tmp_path), *sys.path])})
    out, = folder.glob('runs/sim-g\u00e4rten-*')
    assert done.returncode == 0 and f'runs/{out.name}/run.png'.encode() in done.stdout, done
    assert read_fleet(out / 'fleet.yaml').name == 'g\u00e4rten'


def test_a_fleet_file_without_a_pace_takes_that_of_this_machine_and_can_be_repeated(
        capsys, mine, tmp_path):
    mine.write_text(FLEET.replace('pace: 0.4, ', ''))
    # the pace depends on the machine, so keep the run short
    short = ['--minutes', '0.002', '--out']
    code, text, _ = sim(capsys, mine, *short, str(tmp_path / 'first'))
    said = re.search(r'to repeat the run: --set training\.pace=(\S+)\n', text)
    assert code == 0 and said, text
    pace = read_fleet(tmp_path / 'first/fleet.yaml').training.pace
    assert pace == float(said[1]) > 0 and pace == float(f'{pace:.1e}')
    for fleet, name, more in ((mine, 'set', ['--set', f'training.pace={said[1]}']),
                              (tmp_path / 'first/fleet.yaml', 'file', [])):
        code, text, _ = sim(capsys, fleet, *more, *short, str(tmp_path / name))
        assert code == 0 and 'training.pace' not in text
        for file in ('run.jsonl', 'summary.json'):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / 'first' / file).read_bytes()


def test_it_says_what_the_task_takes_before_the_run(capsys, mine, tmp_path):
    _, text, _ = sim(capsys, mine, '--minutes', '0.05', '--out', str(tmp_path / 'out'))
    first, second = text.splitlines()[:2]
    assert first.endswith(': loading the task a_line:Line')
    assert re.fullmatch(r'Linear: 1\.2 k parameters in 21 rows, \S+ m?s a gradient, '
                        r'4\.9 kB a push, \S+ kB of memory', second), second


@pytest.mark.parametrize(('task', 'says'), [
    ('Apart', 'does not depend on a parameter'),
    ('NotANumber', 'the loss of the first batch is nan')])
def test_a_task_that_cannot_be_trained_is_refused_before_the_run(capsys, mine, tmp_path, task,
                                                                 says):
    refused(capsys, mine, tmp_path, ['--set', f'training.task=a_line:{task}'], [says])


def test_a_robot_whose_numbers_are_wrong_is_named_and_the_exit_code_says_so(
        capsys, mine, tmp_path):
    code, text, error = sim(capsys, mine, '--out', str(tmp_path / 'out'), '--set',
                            'training.task=a_line:WrongOnOne')
    assert (code, error) == (1, '')
    assert 'robot2 has left the fleet: iteration 3: the gradient holds NaN' in text
    assert read_summary(tmp_path / 'out').robots['robot1'].iterations > 10


def test_a_directory_with_a_run_in_it_is_left_alone(capsys, mine, tmp_path):
    out = tmp_path / 'out'
    assert sim(capsys, mine, '--minutes', '0.1', '--out', str(out))[0] == 0
    before = contents(out)
    code, _, error = sim(capsys, mine, '--out', str(out))
    assert code == 2 and 'already holds a run; choose another' in error
    assert contents(out) == before


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_control_c_ends_it_cleanly_with_records_that_can_be_read(mine, tmp_path, capfd):
    out = tmp_path / 'out'
    with Forked(PROGRAMS, ['rog_cli.main', 'sim', str(mine), '--minutes', '100000', '--set',
                           'training.task=a_line:Talking', '--out', str(out)],
                errors=False, cwd=tmp_path) as process:
        try:
            while (line := process.stdout.readline()) not in ('under way\n', ''):
                pass
            process.send_signal(signal.SIGINT)
            process.communicate()
        finally:
            process.kill()
    assert line == 'under way\n'
    assert process.returncode == 130
    assert capfd.readouterr().err == f'rog: stopped; {out} holds the records up to here\n'
    assert {event.robot for event in read_run(out)} >= {'robot1', 'robot2'}
