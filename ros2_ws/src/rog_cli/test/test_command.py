"""The rog command as a user runs it: exit codes, messages, files."""

import errno
import os
import re
import subprocess
import sys

import pytest
from fleet_env.records.events import Evaluation, Fault, Iteration, RunWriter, Start
from fleet_env.records.summary import Accuracy, RobotSummary, Summary, write_summary
from fleet_env.settings.fleet_file import load_fleet
from fleet_testing import LIMIT
from rog_bringup import FLEETS
from rog_cli import main as main_module
from rog_cli.commands import fleet as fleet_module
from rog_cli.main import main
from rog_sim import figures


def run(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize('fleet', ['indoor', 'outdoor'])
def test_show_writes_a_fleet_file_that_says_the_same(capsys, tmp_path, fleet):
    code, text, _ = run(capsys, 'fleet', 'show', fleet)
    assert code == 0
    path = tmp_path / 'copy.yaml'
    path.write_text(text)
    assert run(capsys, 'fleet', 'show', str(path)) == (0, text, '')


@pytest.mark.parametrize(('arguments', 'says'), [
    (['nowhere'], ["no fleet is called 'nowhere'", 'indoor']),
    (['indoor', '--sync', 'rps:4'], ["'rps:4' is unknown", 'rsp:T']),
    (['indoor', '--sync', 'rsp:0'], ['rsp:0', '1 to']),
    (['indoor', '--sync', 'ssp'], ['ssp:4']),
    (['indoor', '--sync', 'bsp:3'], ['takes no threshold']),
    (['indoor', '--minutes', '-1'], ['minutes', 'greater than 0']),
    (['indoor', '--set', 'training.paec=1'], ['training.paec', "did you mean 'pace'"]),
    (['indoor', '--set', 'pace'], ['KEY=VALUE']),
    (['indoor', '--only', 'robot1,robot9'], ['the fleet has server, robot1']),
    (['indoor', '--set', 'training.codec=zip'], ["'zip' is unknown", 'onebit']),
    (['indoor', '--set', 'network.domain_id=300'], ['network.domain_id', '232']),
    (['indoor', '--set', 'network.interface=wlan77'], ['wlan77', 'it has lo']),
    (['indoor', '--set', 'training.task=no_such:Task'], ["there is no module 'no_such'"]),
    (['indoor', '--set', 'training.task=collections:deque'], ['does not implement model']),
    (['indoor', '--sync', 'no_such:Method'], ["No module named 'no_such'"]),
    (['indoor', '--resume'], ['--resume', 'there is no run in', 'to continue']),
])
def test_a_bad_choice_is_refused_before_anything_starts(capsys, tmp_path, arguments, says):
    out = tmp_path / 'out'
    code, _, error = run(capsys, 'fleet', 'up', *arguments, '--out', str(out))
    assert code == 2
    for part in says:
        assert part in error
    assert not out.exists()


@pytest.mark.parametrize('arguments', [
    ['fleet', 'up', 'indoor'], ['sim', 'indoor'], ['compare', 'indoor', '--sync', 'bsp,asp'],
    ['plot', '.'], ['trace', 'generate', 'indoor'], ['key', 'fleet.key', '--robot', 'robot1'],
    ['chaos', 'indoor']])
def test_an_out_that_is_empty_is_not_where_the_user_is(
        capsys, monkeypatch, tmp_path, arguments):
    """Refuse ``--out ""``, which a script passes if a variable is not set.

    An earlier version wrote the run into the user's working directory.
    """
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*arguments, '--out', ''])
    assert ended.value.code == 2 and 'argument --out: must not be empty' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('text', ['nan', '-1', 'inf', 'soon'])
@pytest.mark.parametrize('verb', [['status', '--once'], ['control', 'stop'], ['doctor']])
def test_nobody_waits_for_a_time_that_is_none(capsys, verb, text):
    with pytest.raises(SystemExit) as ended:
        main([*verb, f'--timeout={text}'])
    assert ended.value.code == 2 and 'must be a time of at least 0 s' in capsys.readouterr().err


@pytest.mark.parametrize('option, verb', [
    ('--out', ['key', 'fleet.key', '--out', 'robot1.key']),
    ('--robot', ['trace', 'record', '--iface', 'wlan0', '--robot', 'robot1', '--out', 'a.txt']),
    ('--domain-id', ['view', '.', '--domain-id', '7']), ('--key', ['view', '.', '--key', 'x.key'])])
def test_an_option_that_would_have_no_effect_is_refused(capsys, monkeypatch, tmp_path, option,
                                                        verb):
    monkeypatch.chdir(tmp_path)
    code, _, error = run(capsys, *verb)
    assert code == 2 and error.startswith(f'rog: {option}: it is for '), error
    assert not list(tmp_path.iterdir())


def test_a_run_is_resumed_only_where_it_is_said_where_it_is(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for verb in (['fleet', 'up', 'indoor'], ['compare', 'indoor', '--sync', 'bsp']):
        code, _, error = run(capsys, *verb, '--resume')
        assert code == 2 and 'give --out DIR' in error
    code, _, error = run(capsys, 'compare', 'indoor', '--resume', '--out', 'there')
    assert code == 2 and f'no directory {tmp_path}/there with runs' in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('verb', [
    ['fleet', 'up', 'mine.yaml'], ['plot', 'mine'], ['view', 'mine'],
    ['control', 'stop', '--key', 'mine.key']])
def test_a_file_that_is_missing_is_named_with_the_folder_looked_in(
        capsys, monkeypatch, tmp_path, verb):
    monkeypatch.chdir(tmp_path)
    code, _, error = run(capsys, *verb)
    assert code == 2 and verb[-1] in error and 'Errno' not in error
    assert re.search(f'there is no such (file in|folder as) {tmp_path}', error), error


def test_a_file_in_place_of_a_directory_is_named(capsys, tmp_path):
    (tmp_path / 'out').write_text('')
    code, _, error = run(capsys, 'fleet', 'up', 'indoor', '--out', str(tmp_path / 'out'))
    assert code == 2 and error == f'rog: {tmp_path}/out: File exists\n'


def test_ctrl_c_while_a_verb_is_loaded_is_no_traceback(capsys, monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, 'import_module', interrupted)
    assert run(capsys, 'fleet', 'up', 'indoor') == (130, '', '')


def test_a_fleet_file_with_a_wrong_key_names_its_line(capsys, tmp_path):
    path = tmp_path / 'mine.yaml'
    path.write_text('name: mine\nrobots:\n  - name: a\ntraining:\n  snyc: bsp\n')
    code, _, error = run(capsys, 'fleet', 'up', str(path), '--out', str(tmp_path / 'out'))
    assert code == 2
    assert 'mine.yaml, line 5' in error and 'sync' in error


def test_an_out_directory_with_a_run_in_it_is_left_alone(capsys, tmp_path):
    record(tmp_path)
    before = (tmp_path / 'summary.json').read_text()
    code, _, error = run(capsys, 'fleet', 'up', 'indoor', '--out', str(tmp_path))
    assert code == 2 and 'already holds a run' in error
    assert (tmp_path / 'summary.json').read_text() == before


def record(directory):
    with RunWriter(directory) as writer:
        writer.write(Start(0.0, '', 'a:B', 'rsp:4', 1, 'toy', ['robot1', 'robot2']))
        for robot in ('robot1', 'robot2'):
            for k in range(5):
                writer.write(Iteration(k * 1.0, robot, k, 1.0 / (k + 1), .5, .2, .1, 10 + k, 5, 20,
                                       bandwidth=3.0, link_rate=4.0))
                writer.write(Evaluation(k * 1.0, robot, k, k / 5))
        writer.write(Fault(2.5, 'robot2', 'peer_lost', 'no heartbeat'))
    robot = RobotSummary(5, 2.5, 1.0, .5, 20.0, 1000, 900, 12.0, Accuracy(.9, .5, .8),
                         [(1.0, 1, .6)])
    robots = {'robot1': robot, 'robot2': robot}
    write_summary(directory, Summary('rsp:4', 'a:B', 1, 5.0, robots, 'toy'))


class Ended:
    """The processes of a fleet that has ended; ``code`` is the exit code of the server."""

    names, killed, fleet = ['server'], (), load_fleet('indoor', [FLEETS])

    def __init__(self, out, code):
        self.out, self.code = out, code

    def failures(self):
        return {'server': self.code} if self.code else {}

    def said(self, name):
        return 'its own words'

    def log(self, name):
        return self.out / 'logs/server.log'


class Undisturbed:
    """Behaves like an `Interruption` that has received no signal."""

    number, at_once = 0, False

    def __bool__(self):
        return False


def ended(capsys, out, code, former=None):
    result = fleet_module._result(Ended(out, code), Undisturbed(), former)
    captured = capsys.readouterr()
    return result, captured.out, captured.err


def test_the_table_of_a_former_run_is_not_taken_for_that_of_one_that_failed(
        capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(figures, 'draw_run', lambda out: [])
    record(tmp_path)
    former = fleet_module._version(tmp_path)
    code, text, error = ended(capsys, tmp_path, 1, former)
    assert (code, text) == (1, '') and 'its own words' in error
    record(tmp_path)  # the server failed, but it wrote complete results
    assert 'robot2' in ended(capsys, tmp_path, 1, former)[1]


def test_a_full_disk_at_the_start_is_said_with_the_file(capsys, tmp_path):
    (tmp_path / 'fleet.yaml').symlink_to('/dev/full')
    code, _, error = run(capsys, 'fleet', 'up', 'indoor', '--out', str(tmp_path))
    assert (code, error) == (2, f'rog: {tmp_path}/fleet.yaml: No space left on device\n')


def test_a_full_disk_costs_the_pictures_and_no_checkpoint_is_promised(
        capsys, monkeypatch, tmp_path):
    def full(out):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(figures, 'draw_run', full)
    record(tmp_path)
    code, text, error = ended(capsys, tmp_path, 0)
    assert code == 1 and 'no pictures: No space left on device' in error
    assert 'run.jsonl, summary.json' in text and 'checkpoint' not in text


def test_plot_draws_a_run_from_its_records(capsys, tmp_path):
    record(tmp_path)
    code, text, _ = run(capsys, 'plot', str(tmp_path))
    assert code == 0
    assert text.split() == [str(tmp_path / name)
                            for name in ('run.png', 'run.svg', 'micro.png', 'micro.svg')]
    assert (tmp_path / 'run.png').read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'
    assert '<svg' in (tmp_path / 'run.svg').read_text()


def test_plot_of_a_directory_without_a_run_says_so(capsys, tmp_path):
    code, _, error = run(capsys, 'plot', str(tmp_path))
    assert code == 2 and 'run.jsonl' in error


def test_plot_names_the_line_that_is_broken(capsys, tmp_path):
    record(tmp_path)
    lines = (tmp_path / 'run.jsonl').read_text().splitlines()
    lines[3] = lines[3][:20]
    (tmp_path / 'run.jsonl').write_text('\n'.join(lines) + '\n')
    code, _, error = run(capsys, 'plot', str(tmp_path))
    assert code == 2 and 'run.jsonl, line 4' in error


def test_status_without_a_fleet_says_which_domain_it_looked_in(capsys, monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', '97')
    code, _, error = run(capsys, 'status', '--once', '--timeout', '0.3')
    assert code == 1 and 'domain 97' in error


def test_a_verb_is_needed():
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


@pytest.mark.parametrize('names', [('one', 'two'), ('two', 'one')])
def test_verbs_of_other_packages_come_in_one_order_however_they_are_found(names, monkeypatch):
    class Found:
        def __init__(self, name):
            self.name = name

        def load(self):
            return lambda verbs: verbs.add_parser(self.name)

    monkeypatch.setattr(main_module, 'entry_points',
                        lambda group: [Found(name) for name in names])
    parser = main_module.make_parser()
    verbs = list(next(a for a in parser._actions if a.choices).choices)
    assert verbs[-2:] == ['one', 'two']


def test_a_verb_waits_for_no_imports_that_only_others_need():
    program = ('import sys; from rog_cli.main import main; main(["trace", "stats", "indoor"]); '
               'print({"numba", "rclpy", "torch"} & set(sys.modules))')
    ended = subprocess.run([sys.executable, '-c', program], text=True, capture_output=True,
                           check=True)
    assert ended.stdout.endswith('set()\n')


def test_a_name_that_the_terminal_cannot_write_is_no_error(tmp_path):
    done = subprocess.run([sys.executable, '-m', 'rog_cli.main', 'trace', 'generate', 'indoor',
                           '--minutes', '1', '--out', str(tmp_path / 'größe.txt')],
                          capture_output=True, env={**os.environ, 'PYTHONIOENCODING': 'ascii'},
                          timeout=LIMIT, check=False)
    assert done.returncode == 0 and b'gr\\xf6\\xdfe.txt' in done.stdout, done.stderr
