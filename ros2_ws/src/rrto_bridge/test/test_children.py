"""The processes that a program starts use the device, whatever environment it gives them."""

import os
import subprocess
import sys

import pytest
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment
from processes import Domain
from rrto_bridge.program.children import BOOTSTRAP, HIDDEN, adapted

OURS = {'RRTO_SETTINGS': '{}', 'ROS_DOMAIN_ID': '7', 'PYTHONPATH': f'{BOOTSTRAP}:/ros',
        'HOME': '/h'}


def words(command, environment, ours=OURS):
    made, wanted = adapted(command.split(), environment, ours)
    return ' '.join(made), wanted


def test_an_emptied_environment_is_given_what_the_device_needs():
    command, given = words('python app.py', {'LANG': 'C'})
    assert command == 'python app.py'
    assert given == {'LANG': 'C', 'RRTO_SETTINGS': '{}', 'ROS_DOMAIN_ID': '7',
                     'PYTHONPATH': f'{BOOTSTRAP}:/ros'}


def test_an_emptied_environment_is_given_all_that_keeps_a_fleet_to_its_interface():
    network = dds_environment(ReachConfig())
    assert network.items() <= words('python app.py', {}, {**OURS, **network})[1].items()


def test_a_path_of_the_program_comes_behind_ours():
    _, given = words('python app.py', {**OURS, 'PYTHONPATH': '/lib'})
    assert given['PYTHONPATH'] == f'{BOOTSTRAP}:/lib'
    assert words('python app.py', OURS)[1] == OURS


# Python before 3.11 has no option -P, which replaces -I. There, a command with -I stays unchanged.
SAFE = sys.version_info >= (3, 11)


@pytest.mark.parametrize(('command', 'made'), [
    ('python3 -I app.py', 'python3 -Ps app.py' if SAFE else 'same'),
    ('/usr/bin/python -uE -m app -I', None),
    ('python -O -I -', 'python -O -Ps -' if SAFE else 'same'),
    ('python -EX dev -s -c pass', 'python -X dev -s -c pass'),
    ('python app.py -I', 'same'), ('python -m app -E', 'same'), ('python -WIgnore app.py', 'same'),
    ('python -cE=1 -I', 'same'), ('echo -I', 'same'), ('python', 'same')])
def test_python_that_ignores_variables_ignores_all_but_ours(command, made):
    before = {**OURS, 'PYTHONHASHSEED': '1'}
    found, given = words(command, before)
    if made == 'same':
        assert (found, given) == (command, before)
        return
    assert found == (made or '/usr/bin/python -u -m app -I')
    assert given['PYTHONPATH'] == BOOTSTRAP and 'PYTHONHASHSEED' not in given
    assert sorted(given[HIDDEN].split('\n')) == ['PYTHONHASHSEED=1',
                                                 f'PYTHONPATH={BOOTSTRAP}:/ros']


@pytest.mark.parametrize('command', ['env -i A=1 python app.py', 'env - A=1 python app.py',
                                     'env -C /tmp --ignore-environment A=1 python app.py'])
def test_env_that_empties_the_environment_sets_ours(command):
    found, _ = words(command, OURS)
    assert found.startswith(command.removesuffix(' python app.py'))
    assert found.endswith(' python app.py')
    for part in ('RRTO_SETTINGS={}', 'ROS_DOMAIN_ID=7', f'PYTHONPATH={BOOTSTRAP}:/ros', 'A=1'):
        assert part in found.split()
    assert words('env A=1 python app.py', OURS) == ('env A=1 python app.py', OURS)
    assert words('env', OURS) == ('env', OURS)


@pytest.mark.parametrize(('command', 'made'), [
    ('timeout 9 python -I app.py', 'timeout 9 python -Ps app.py' if SAFE else 'same'),
    ('nice -n 5 timeout -s KILL 9.5s python -E app.py',
     'nice -n 5 timeout -s KILL 9.5s python app.py'),
    ('taskset 1 env -i python app.py', None), ('xargs grep python -I', 'same'),
    ('timeout 9 grep python -E', 'same'), ('nice', 'same')])
def test_a_python_behind_a_command_that_starts_it_is_given_what_the_device_needs(command, made):
    found, given = words(command, OURS)
    if made is None:
        assert found.startswith('taskset 1 env -i RRTO_SETTINGS={}')
    else:
        assert found == (command if made == 'same' else made)
    assert given['PYTHONPATH'].startswith(BOOTSTRAP)


@pytest.mark.parametrize('command', [
    'sudo python app.py', 'sh -c env -i python app.py', 'bash -c python3 -I app.py',
    'python -S app.py', 'sh -c PYTHONPATH=/lib python app.py',
    'bash -c unset PYTHONPATH; python app.py'])
def test_what_can_not_be_given_the_device_is_named(command, capsys):
    assert words(command, OURS)[0] == command
    told = capsys.readouterr().err
    words('sh -c PYTHONPATH=/lib:$PYTHONPATH python app.py', OURS)
    words('sh -c PYTHONPATH=${PYTHONPATH}:/lib python app.py', OURS)
    assert not capsys.readouterr().err
    assert told.startswith('rrto: ') and told.count('\n') == 1 and 'it will see no device' in told


def test_a_script_for_a_python_that_ignores_variables_is_named(tmp_path, capsys):
    script = tmp_path / 'app'
    script.write_text('#!/usr/bin/python3 -I\n')
    adapted([str(script)], OURS, OURS)
    assert 'it will see no device' in capsys.readouterr().err
    script.write_text('#!/usr/bin/python3\n')
    adapted([str(script)], OURS, OURS)
    assert capsys.readouterr().err == ''


STARTS = '''
import multiprocessing, os, subprocess, sys
import torch
me, code = sys.executable, 'import torch; print(torch.ones(2).cuda().device, flush=True)'
path = os.path.dirname(me)

def child():
    exec(code)

def forked(function, *arguments):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        function(*arguments)
    os.waitpid(pid, 0)

if __name__ == '__main__':
    subprocess.run([me, '-c', code], env={})
    subprocess.run([me, '-c', code], env={'PYTHONPATH': '/nowhere', 'PATH': path})
    subprocess.run([me, '-I', '-c', code])
    subprocess.run([me, '-E', '-c', code], env={}, close_fds=False)
    subprocess.run(['env', '-i', me, '-c', code])
    forked(os.execve, me, [me, '-c', code], {})
    forked(os.execvpe, me, [me, '-Ic', code], {})
    os.waitpid(os.posix_spawn(me, [me, '-c', code], {}), 0)
    os.spawnve(os.P_WAIT, me, [me, '-c', code], {})
    os.system('env -i ' + me + ' /dev/null')
    os.environ.clear()
    os.system(f"{me} -c '{code}'")
    subprocess.run([me, '-c', code])
    process = multiprocessing.get_context('spawn').Process(target=child)
    process.start()
    process.join()
'''


@pytest.fixture
def domain():
    made = Domain()
    made.server('s', threads=1, programs=4).wait('serving as s')
    yield made
    made.close()


@pytest.mark.long
def test_children_of_every_kind_see_the_device(domain, tmp_path):
    path = tmp_path / 'starts.py'
    path.write_text(STARTS)
    code, out, err = domain.run('--server', 's', '--', sys.executable, str(path))
    assert (code, out.split()) == (0, ['cuda:0'] * 12), err
    assert err.startswith('rrto: ') and err.count('\n') == 1 and 'it will see no device' in err


@pytest.mark.long
def test_isolated_pythons_are_run_with_the_device(domain):
    code = "import sys, torch; print(torch.ones(2).cuda().device, '' in sys.path)"
    for command in ([sys.executable, '-I'], [sys.executable, '-E'], ['env', '-i', sys.executable]):
        done, out, err = domain.run('--server', 's', '--', *command, '-c', code)
        assert (done, out.split()[0]) == (0, 'cuda:0'), err
        assert out.split()[1] == str('-I' not in command)


def test_a_process_without_rrto_is_left_alone():
    environment = {k: v for k, v in os.environ.items() if not k.startswith('RRTO')}
    code = 'import os, sys; print(os.execve.__module__, "rrto_bridge" in sys.modules)'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                          env={**environment, 'PYTHONPATH': BOOTSTRAP}, check=True)
    assert done.stdout.split() == ['posix', 'False']
