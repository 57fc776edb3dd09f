"""The suite as one wheel, for machines without ROS 2: pyproject.toml."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
# The packages of the wheel; studies/ is for those who repeat measurements, in a checkout.
PLACES = [*ROOT.glob('ros2_ws/src/*'), ROOT / 'launch']
USE = '''
import sys
import rclpy, rog_msgs.msg, lopinfer_msgs.srv, rrto_msgs.msg, std_srvs.srv
from lopinfer_node.cli.main import make_parser as lopinfer
from rog_cli.main import main
from rrto_bridge.cli.main import make_parser as rrto
rog_msgs.msg.RowChunk(iteration=3), lopinfer_msgs.srv.Open.Request(), std_srvs.srv.SetBool.Request()
code = main(['sim', 'outdoor', '--minutes', '0.2', '--out', 'out', '--set',
             'training.task=rog_tasks.classify:Classification'])
ours = [m.__file__ for name, m in sys.modules.items() if '.' not in name and getattr(
    m, '__file__', None) and name.startswith(('rog_', 'fleet_', 'lopinfer_', 'rrto_', 'rclpy'))]
assert len(ours) > 12 and all(f.startswith(sys.argv[1]) for f in ours), ours
sys.exit(code)
'''


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp('dist')
    subprocess.run([sys.executable, '-m', 'hatchling', 'build', '-t', 'wheel', '-d', folder],
                   cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob('*.whl'))


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    expected = set()
    for place in PLACES:
        package = place.name if place.name != 'launch' else 'rog_bringup'
        for path in place.rglob('*'):
            relative = path.relative_to(place)
            if path.is_file() and relative.parts[0] == package and path.suffix in ('.py', '.yaml'):
                expected.add(str(relative))
            elif relative.parts[0] in ('msg', 'srv') and path.is_file():
                expected.add(f'{package}/{relative}')
    embedded = ROOT / 'embedded' / 'src'
    expected |= {str(path.relative_to(embedded)) for path in embedded.rglob('*')
                 if path.suffix in ('.py', '.srv', '.typed')}
    assert not expected - inside
    assert sum(name.endswith('.launch.py') for name in inside) == len(
        list(ROOT.glob('launch/*.launch.py')))
    assert not [name for name in inside if '/test/' in name or name.endswith(('.nbi', '.pyc'))]


@pytest.mark.long
def test_what_is_in_the_wheel_runs_without_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / 'site')
    done = subprocess.run([sys.executable, '-c', USE, str(tmp_path / 'site')], cwd=tmp_path,
                          env={**os.environ, 'PYTHONPATH': str(tmp_path / 'site')}, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'out' / 'summary.json').exists()


@pytest.mark.parametrize('module, folder, says', [
    # The rclpy of a ROS 2 that is sourced comes first, and the workspace is not built.
    ('rog_msgs', 'ros', 'colcon build'),
    # pip has put our files over those of conda's rclpy, of which the compiled part is left.
    ('rclpy', 'site', 'are mixed in')])
def test_it_refuses_to_be_mixed_with_the_rclpy_of_ros_2(module, folder, says, wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / 'site')
    (tmp_path / 'ros/rclpy').mkdir(parents=True)
    (tmp_path / 'ros/rclpy/__init__.py').touch()
    (tmp_path / 'site/rclpy/_rclpy_pybind11.py').touch()
    path = os.pathsep.join([str(tmp_path / folder), str(tmp_path / 'site')])
    done = subprocess.run([sys.executable, '-c', f'import {module}'], text=True,
                          capture_output=True, env={**os.environ, 'PYTHONPATH': path})
    assert done.returncode == 1 and says in done.stderr.splitlines()[-1], done.stderr


def test_it_depends_on_what_its_packages_depend_on():
    required = {'cyclonedds>=11.0.1,<12', 'rosbags>=0.11'}      # of embedded/
    for place in PLACES:
        if (place / 'setup.py').exists():
            text = re.search(r'install_requires=\[(.*?)\]', (place / 'setup.py').read_text(), re.S)
            required |= set(re.findall(r"'([^']+)'", text[1]))
    assert set(PROJECT['dependencies']) == required - {'rosbags'}


def test_every_manifest_names_its_license_file_and_the_same_people_and_place():
    manifests = [*ROOT.glob('ros2_ws/src/*/package.xml'), *ROOT.glob('*/package.xml')]
    told = set()
    for path in manifests:
        root = ElementTree.parse(path).getroot()
        license = root.find('license')
        assert license.text == 'Apache-2.0'
        assert (path.parent / license.get('file')).read_bytes() == (ROOT / 'LICENSE').read_bytes()
        told.add((root.find('maintainer').get('email'), root.findtext('maintainer'),
                  root.findtext('url')))
    assert len(manifests) == 17 and len(told) == 1 and all(told.pop())


def test_all_packages_have_one_version():
    versions = {ElementTree.parse(path).findtext('version') for place in [*PLACES, ROOT / 'studies']
                for path in [place / 'package.xml'] if path.exists()}
    versions |= {re.search(r"version='(.*?)'", path.read_text())[1] for path in [
        *ROOT.glob('ros2_ws/src/*/setup.py'), *ROOT.glob('*/setup.py')]
        if path.parent.name != 'embedded'}
    embedded = tomllib.loads((ROOT / 'embedded' / 'pyproject.toml').read_text())['project']
    newest = re.search(r'^## ([\d.]+) \(\d{4}-\d\d-\d\d\)$', (ROOT / 'CHANGELOG.md').read_text(),
                       re.M)
    assert versions | {embedded['version'], newest[1]} == {PROJECT['version']}
