"""The wheels of the suite and of its messages: pyproject.toml, tools/wheels.py."""

import os
import re
import subprocess
import sys
import sysconfig
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
# The packages in the wheel. studies/ is not in it, because users run studies in a checkout of the
# repository.
PLACES = [*ROOT.glob('ros2_ws/src/*'), ROOT / 'launch']
USE = '''
import sys
import rclpy, fleet_msgs.msg, rog_msgs.msg, lopinfer_msgs.srv, rrto_msgs.msg, std_srvs.srv
from lopinfer_node.cli.main import make_parser as lopinfer
from rclpy.serialization import serialize_message
from rog_cli.main import main
from rog_ros.servers import this_version
from rrto_bridge.cli.main import make_parser as rrto
for message in (rog_msgs.msg.RowChunk(iteration=3), lopinfer_msgs.srv.Open.Request(),
                fleet_msgs.msg.Frame(), rrto_msgs.msg.ServerStatus()):
    serialize_message(message)
code = main(['sim', 'outdoor', '--minutes', '0.2', '--out', 'out', '--set',
             'training.task=rog_tasks.classify:Classification'])
ours = [m.__file__ for name, m in sys.modules.items() if '.' not in name and getattr(
    m, '__file__', None) and name.startswith(('rog_', 'fleet_', 'lopinfer_', 'rrto_'))]
assert len(ours) > 12 and all(f.startswith(sys.prefix) for f in ours), ours
assert this_version() == sys.argv[1]
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
    assert not expected - inside
    assert sum(name.endswith('.launch.py') for name in inside) == len(
        list(ROOT.glob('launch/*.launch.py')))
    assert not [name for name in inside if '/test/' in name or name.endswith(('.nbi', '.pyc'))]


@pytest.mark.long
def test_what_is_in_the_wheels_runs_without_the_checkout(tmp_path):
    """The wheels run in an environment that otherwise has only packages of other projects."""
    subprocess.run([sys.executable, ROOT / 'tools' / 'wheels.py', tmp_path / 'dist'], check=True)
    wheels = sorted((tmp_path / 'dist').glob('*.whl'))
    assert len(wheels) == 2
    subprocess.run([sys.executable, '-m', 'venv', tmp_path / 'env'], check=True)
    python = tmp_path / 'env' / 'bin' / 'python'
    subprocess.run([python, '-m', 'pip', 'install', '-q', '--no-deps', *wheels], check=True)
    site, = (tmp_path / 'env').glob('lib/*/site-packages')
    (site / 'others.pth').write_text(sysconfig.get_path('purelib') + '\n')
    libraries = os.pathsep.join([str(tmp_path / 'env' / 'lib'), str(Path(sys.prefix) / 'lib')])
    done = subprocess.run([python, '-c', USE, PROJECT['version']], cwd=tmp_path, text=True,
                          capture_output=True, env={**os.environ, 'LD_LIBRARY_PATH': libraries})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'out' / 'summary.json').exists()


def test_it_depends_on_what_its_packages_depend_on():
    required = {'rosbags>=0.11'}  # recordings of other ROS 2 distributions need this version
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
    assert len(manifests) == 24 and len(told) == 1 and all(told.pop())


def test_all_packages_have_one_version():
    versions = {ElementTree.parse(path).findtext('version') for place in [*PLACES, ROOT / 'studies']
                for path in [place / 'package.xml'] if path.exists()}
    versions |= {re.search(r"version='(.*?)'", path.read_text())[1] for path in [
        *ROOT.glob('ros2_ws/src/*/setup.py'), *ROOT.glob('*/setup.py')]}
    newest = re.search(r'^## ([\d.]+) \(\d{4}-\d\d-\d\d\)$', (ROOT / 'CHANGELOG.md').read_text(),
                       re.M)
    assert versions | {newest[1]} == {PROJECT['version']}
