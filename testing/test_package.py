"""The wheels of the suite and of its messages, and releases: tools/wheels.py, tools/release.py."""

import datetime
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
sys.path.insert(0, str(ROOT / 'tools'))
import release  # noqa: E402

PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
# The packages in the wheel. studies/ is not in it, because users run studies in a checkout of the
# repository.
PLACES = [*ROOT.glob('ros2_ws/src/*'), ROOT / 'launch']
USE = '''
import sys
import rclpy, fleet_msgs.msg, rog_msgs.msg, lopinfer_msgs.srv, rrto_msgs.msg, std_srvs.srv
from fleet_env.command import version
from lopinfer_node.cli.main import make_parser as lopinfer
from rclpy.serialization import serialize_message
from rog_cli.main import main
from rrto_bridge.cli.main import make_parser as rrto
for message in (rog_msgs.msg.RowChunk(iteration=3), lopinfer_msgs.srv.Open.Request(),
                fleet_msgs.msg.Frame(), rrto_msgs.msg.ServerStatus()):
    serialize_message(message)
code = main(['sim', 'outdoor', '--minutes', '0.2', '--out', 'out', '--set',
             'training.task=rog_tasks.classify:Classification'])
ours = [m.__file__ for name, m in sys.modules.items() if '.' not in name and getattr(
    m, '__file__', None) and name.startswith(('rog_', 'fleet_', 'lopinfer_', 'rrto_'))]
assert len(ours) > 12 and all(f.startswith(sys.prefix) for f in ours), ours
assert version() == sys.argv[1]
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
            text = (place / 'setup.py').read_text()
            # what a robot can do without, but the demos and pictures of a laptop cannot
            for part in re.findall(r"(?:install_requires=|'(?:digits|pictures)': )\[(.*?)\]", text,
                                   re.S):
                required |= set(re.findall(r"'([^']+)'", part))
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
    newest = release.RELEASE.search((ROOT / 'CHANGELOG.md').read_text())
    assert {*release.versioned(ROOT).values(), newest[1]} == {PROJECT['version']}


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with copies of the files that a release changes."""
    for path in [*release.versioned(ROOT), ROOT / 'CHANGELOG.md']:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    log = tmp_path / 'CHANGELOG.md'
    before, heading, after = log.read_text().partition(release.UNRELEASED)
    released = after[release.RELEASE.search(after).start():]
    log.write_text(f'{before}{heading}\n### Added\n\n- Legs.\n\n{released}')
    return tmp_path


DAY = datetime.date(2099, 12, 24)


def test_a_release_changes_all_versions_and_takes_what_was_unreleased(checkout):
    places = release.versioned(checkout)
    assert len(places) == len(release.versioned(ROOT)) > 40
    others = {path: path.read_text().replace(PROJECT['version'], '') for path in places}
    release.release(checkout, '99.1.0', DAY)
    assert set(release.versioned(checkout).values()) == {'99.1.0'}
    assert all(path.read_text().replace('99.1.0', '') == text for path, text in others.items())
    assert ('## Unreleased\n\n## 99.1.0 - 2099-12-24\n\n### Added\n\n- Legs.\n\n## '
            in (checkout / 'CHANGELOG.md').read_text())


@pytest.mark.parametrize('version, date, reason', [
    (PROJECT['version'], DAY, 'must be newer than'), ('0.0.9', DAY, 'must be newer than'),
    ('99.1', DAY, 'three numbers'), ('v99.1.0', DAY, 'three numbers'),
    ('99.1.0', datetime.date(2026, 11, 1), 'must not be older than')])
def test_a_release_that_cannot_be_made_changes_nothing(checkout, version, date, reason):
    files = {path: path.read_text() for path in checkout.rglob('*.*') if path.is_file()}
    with pytest.raises(release.ReleaseError, match=reason):
        release.release(checkout, version, date)
    assert all(path.read_text() == text for path, text in files.items())


def test_a_release_without_changes_is_refused(checkout):
    release.release(checkout, '99.1.0', DAY)
    with pytest.raises(release.ReleaseError, match='nothing is unreleased'):
        release.release(checkout, '99.2.0', DAY)
