"""Installs `ros2` and `ros2 launch` beside PyPI's ROS 2, which lacks them: `make ros2-tools`.

    ros2_tools.py DISTRIBUTION SOURCES   fetch what SOURCES lacks, then install everything

All packages are pure Python, except the interfaces of one package, which colcon builds.
"""

import subprocess
import sys
from pathlib import Path

import ros

ROOT = Path(__file__).parent.parent
# Maps a public repository to the packages that are installed from it.
REPOSITORIES = {
    'osrf/osrf_pycommon': ['.'],
    'ros2/rosidl_runtime_py': ['.'],
    'ros2/launch': ['launch', 'launch_xml', 'launch_yaml'],
    'ros2/launch_ros': ['launch_ros', 'ros2launch'],
    'ros2/ros2cli': ['ros2cli', 'ros2action', 'ros2component', 'ros2doctor', 'ros2interface',
                     'ros2lifecycle', 'ros2multicast', 'ros2node', 'ros2param', 'ros2pkg',
                     'ros2run', 'ros2service', 'ros2topic'],
    'ros2/rcl_interfaces': [],
}
BUILT = 'rcl_interfaces/composition_interfaces'
# for all other repositories, the branch has the name of the distribution
BRANCHES = {'osrf/osrf_pycommon': 'master'}
NEEDED = ['psutil', 'packaging', 'argcomplete', 'importlib-metadata', 'importlib-resources']


def fetch(distribution: str, sources: Path) -> None:
    """Clone each repository that is not in ``sources``."""
    sources.mkdir(parents=True, exist_ok=True)
    for repository in REPOSITORIES:
        where = sources / repository.partition('/')[2]
        if where.exists():
            continue
        branch = BRANCHES.get(repository, distribution)
        url = f'https://github.com/{repository}'
        print(f'fetching {url}, branch {branch}', flush=True)
        code = subprocess.run(['git', 'clone', '-q', '--depth', '1', '--branch', branch, url,
                               str(where)], check=False).returncode
        if code:
            sys.exit(f'{url} could not be fetched. Put its branch {branch} in {where}, or name a '
                     'folder that has all sources: make ros2-tools SOURCES=FOLDER')


def install(sources: Path) -> None:
    """Install the packages of ``sources`` into the environment that runs this file."""
    pip = [sys.executable, '-m', 'pip', 'install', '-q']
    subprocess.run([*pip, '-c', str(ROOT / 'constraints.txt'), *NEEDED], check=True)
    packages = [str(sources / repository.partition('/')[2] / package)
                for repository, found in REPOSITORIES.items() for package in found]
    # -qq suppresses setuptools' warnings about these packages
    subprocess.run([*pip, '-q', '--no-deps', '--no-build-isolation', *packages], check=True)
    ros.build(str(sources / BUILT))


def main() -> None:
    """Fetch the sources of the packages, and install the packages."""
    distribution, sources = sys.argv[1], Path(sys.argv[2]).resolve()
    fetch(distribution, sources)
    print('installing launch and ros2, and building composition_interfaces: about 3 minutes',
          flush=True)
    install(sources)
    print('`ros2 launch` and the rest are there after `source '
          f'{Path(sys.prefix).name}/setup.bash`')


if __name__ == '__main__':
    main()
