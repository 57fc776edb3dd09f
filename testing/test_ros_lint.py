"""The checks that ROS packages run on themselves; most of them need a sourced ROS 2.

Three checks are left out. ament_copyright wants a notice in each source file, but here one
LICENSE holds for all files. ruff does the work of ament_flake8 and ament_pep257, with the
rules of this suite.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MANIFESTS = sorted([*ROOT.glob('*/package.xml'), *ROOT.glob('ros2_ws/src/*/package.xml')])
ABSENT = 'no ROS 2 is sourced'
in_ci = pytest.mark.skipif('CI' not in os.environ,
                           reason='the schema is asked for at download.ros.org; set CI to allow it')


@pytest.mark.parametrize('manifest', MANIFESTS, ids=lambda path: path.parent.name)
def test_a_manifest_is_read_without_a_warning(manifest):
    package = pytest.importorskip('catkin_pkg.package')
    warnings = []
    package.parse_package(str(manifest), warnings=warnings)
    assert not warnings


@in_ci
def test_manifests_keep_to_their_schema():
    xmllint = pytest.importorskip('ament_xmllint.main', reason=ABSENT)
    assert xmllint.main([str(path) for path in MANIFESTS]) == 0


def test_cmake_files_keep_to_the_style_of_ros():
    cmake = pytest.importorskip('ament_lint_cmake.main', reason=ABSENT)
    files = [str(path) for path in ROOT.glob('ros2_ws/src/*/CMakeLists.txt')]
    assert files and cmake.main(files) == 0


def test_the_license_is_one_that_ros_knows():
    parser = pytest.importorskip('ament_copyright.parser', reason=ABSENT)
    assert parser.parse_file(str(ROOT / 'LICENSE')).license_identifier == 'apache2'
