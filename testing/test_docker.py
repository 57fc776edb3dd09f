"""Tests the parts of docker/ that need no image: the fleet of compose.yaml."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fleet_env.settings.fleet_file import load_fleet
from fleet_testing import Lines
from rog_bringup import FLEETS

ROOT = Path(__file__).parent.parent
SERVICES = yaml.safe_load((ROOT / 'docker/compose.yaml').read_text())['services']
# `unshare -rn` runs this script. The script creates a bridge, and for each command a network
# namespace with one interface `eth0`. Each command receives SIGINT, as with compose, and all
# commands share standard output.
HOSTS = '''
import json, os, signal, subprocess, sys, threading
def ip(*words):
    if subprocess.run(['ip', *words]).returncode:
        sys.exit(77)
ip('link', 'add', 'air', 'type', 'bridge')
ip('link', 'set', 'air', 'up')
commands, running = json.loads(sys.argv[1]), []
for number, command in enumerate(commands, 1):
    process = subprocess.Popen(
        ['unshare', '-n', 'sh', '-c', 'echo; read go && exec "$@"', 'sh', *command], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()                      # now it is in its own namespace
    pid, inside = str(process.pid), ['nsenter', '-n', '-t', str(process.pid), 'ip']
    ip('link', 'add', f'port{number}', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', pid)
    ip('link', 'set', f'port{number}', 'master', 'air', 'up')
    for words in (['link', 'set', 'lo', 'up'], ['link', 'set', 'eth0', 'up'],
                  ['address', 'add', f'10.98.0.{number}/24', 'dev', 'eth0']):
        subprocess.run([*inside, *words], check=True)
    running.append(process)
for process in running:
    process.stdin.write('go\\n')
    process.stdin.close()
signal.signal(signal.SIGINT, lambda *_: [os.killpg(p.pid, signal.SIGINT) for p in running])
def show(process):
    for line in process.stdout:
        print(line, end='', flush=True)
readers = [threading.Thread(target=show, args=[process]) for process in running]
for reader in readers:
    reader.start()
for reader in readers:
    reader.join()
print('codes', [process.wait() for process in running], flush=True)
'''


def test_compose_starts_the_server_and_every_robot_of_the_fleet():
    fleet = load_fleet('outdoor', [FLEETS])
    assert list(SERVICES) == ['server', *fleet.capacities]
    for name, service in SERVICES.items():
        assert f'--only {name} ' in service['command']
        assert (ROOT / 'docker' / service['build']['context'] / 'docker/laptop.Dockerfile').exists()


def test_images_copy_and_install_what_is_there():
    for file in (*ROOT.glob('docker/*.Dockerfile'), ROOT / '.devcontainer/devcontainer.json'):
        for path in re.findall(r'(?:COPY |RUN |"\.\./)(docker/[\w./]*|constraints\.txt)',
                               file.read_text()):
            assert (ROOT / path).exists(), f'{file.name}: {path}'


@pytest.mark.long
def test_the_fleet_of_compose_trains_across_machines_and_ends_in_order(tmp_path):
    if shutil.which('unshare') is None or shutil.which('ip') is None:
        pytest.skip('needs unshare and ip')
    commands = [[*shlex.split(re.sub('--out [a-z/]+', f'--out {tmp_path / name}',
                                     service['command'])),
                 '--set', 'training.task=rog_tasks.classify:Classification']
                for name, service in SERVICES.items()]
    env = {**os.environ, 'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}'}
    process = Lines(subprocess.Popen(
        ['unshare', '-rn', sys.executable, '-c', HOSTS, json.dumps(commands)], env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True))
    if process.process.poll() in (1, 77):
        pytest.skip(f'network namespaces are not allowed here: {process.ended()[1]}')
    for robot in list(SERVICES)[1:]:
        process.wait(f'{robot}: [1-9]')
    process.process.send_signal(2)
    code, out = process.ended()
    assert code == 0 and 'codes [0, 0, 0, 0]' in out, out
    assert json.loads((tmp_path / 'server' / 'summary.json').read_text())
