"""Tests that imports and the files package.xml follow the table in CONTRIBUTING."""

import ast
import re
import sys
import xml.etree.ElementTree as ElementTree
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from fleet_testing import FORGET, PROGRAMS, Forked

ROOT = Path(__file__).parent.parent
PLACES = {path.name: path for path in [*ROOT.glob('ros2_ws/src/*/*'), ROOT / 'launch/rog_bringup',
                                       ROOT / 'studies/rog_studies']
          if (path / '__init__.py').exists()}


def table():
    """Return a dict: package -> packages that it may import, in the order of the table."""
    found = {}
    text = (ROOT / 'CONTRIBUTING.md').read_text()
    for names, allowed in re.findall(r'^\| (`.*?) \| .*? \| ?(.*?) ?\|$', text, re.M):
        for name in re.findall(r'`(\w+)`', names):
            below = allowed.startswith('everything below')
            found[name] = None if below else re.findall(r'`(\w+)`', allowed)
    names = list(found)
    return {name: names[names.index(name) + 1:] if allowed is None else allowed
            for name, allowed in found.items()}


TABLE = table()


KEYS = {'backports': 'python3-backports-zstd-pip', 'compression': 'python3-backports-zstd-pip',
        'PIL': 'python3-pil', 'cryptography': 'python3-cryptography',
        'fastapi': 'python3-nicegui-pip', 'llvmlite': 'python3-numba',
        'matplotlib': 'python3-matplotlib', 'nicegui': 'python3-nicegui-pip',
        'numba': 'python3-numba', 'numpy': 'python3-numpy', 'pydantic': 'python3-pydantic-pip',
        'rich': 'python3-rich', 'rosbags': 'python3-rosbags-pip',
        'safetensors': 'python3-safetensors-pip', 'scipy': 'python3-scipy',
        'sklearn': 'python3-sklearn', 'torch': 'python3-torch-pip',
        'typing_extensions': 'python3-typing-extensions',
        'uvicorn': 'python3-nicegui-pip', 'yaml': 'python3-yaml'}
PIP = {'backports': 'backports.zstd', 'compression': 'backports.zstd', 'PIL': 'pillow',
       'fastapi': 'nicegui', 'llvmlite': 'numba', 'sklearn': 'scikit-learn',
       'uvicorn': 'nicegui', 'yaml': 'PyYAML'}
# Maps each module that only tests and benches import to its rosdep key.
TEST_KEYS = {'hypothesis': 'python3-hypothesis', 'ortools': 'python3-ortools-pip',
             'psutil': 'python3-psutil', 'pytest': 'python3-pytest',
             'selenium': 'python3-selenium'}
# Optional modules: used if they are installed. Otherwise, an error or the log names the module
# that is missing.
OPTIONAL = {'PyQt6', 'adapters', 'cupy', 'distributed', 'flwr', 'grpc', 'h5py', 'hivemind', 'jtop',
            'lerobot', 'mlflow', 'nvflare', 'openpi_client', 'tensorboard', 'torchft', 'websockets'}
# Modules that one package imports only where they are needed, as above.
ON_NEED = {'fleet_env': {'matplotlib'}, 'lopinfer_node': {'matplotlib'}, 'rog_tasks': {'sklearn'}}
# What a robot installs (docs/start/real_robots.md), and the packages that it can do without.
ON_ROBOTS = ('fleet_env', 'fleet_link', 'fleet_ros', 'fleet_compute', 'fleet_models', 'rog_core',
             'rog_methods_local', 'rog_tasks', 'rog_ros', 'rog_ps', 'rog_worker', 'lopinfer_node',
             'rrto_bridge', 'fleet_policy')
NOT_ON_ROBOTS = ('distributed', 'joblib', 'matplotlib', 'nicegui', 'ortools', 'sklearn', 'rog_sim',
                 'rog_studies', 'fleet_emulation', 'rog_view')


def imports(package):
    """Return the packages of this suite that a package imports anywhere."""
    return modules(package) & {
        *PLACES, *(p.parent.name for p in ROOT.glob('ros2_ws/src/*_msgs/msg'))}


def modules(package):
    """Return the modules that a package imports anywhere, except the standard library."""
    return imported(PLACES[package]) - {package}


@cache
def nodes(path):
    """Return all nodes of the syntax of a file."""
    return [*ast.walk(ast.parse(path.read_text()))]


@cache
def imported(folder):
    """Return the modules that a folder's files import anywhere, except the standard library."""
    found = set()
    for file in folder.rglob('*.py'):
        for node in nodes(file):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {name.partition('.')[0] for name in names}
    return found - sys.stdlib_module_names


@cache
def manifest(package, *tags):
    """Return the names in these tags of package.xml."""
    tree = ElementTree.parse(PLACES[package].parent / 'package.xml')
    return {element.text for tag in tags for element in tree.iter(tag)}


def test_the_table_has_every_package_and_points_down():
    assert set(PLACES) <= set(TABLE)
    names = list(TABLE)
    for name, allowed in TABLE.items():
        assert all(names.index(below) > names.index(name) for below in allowed), name


@pytest.mark.parametrize('package', PLACES)
def test_a_package_imports_what_the_table_says(package):
    used = imports(package)
    assert used <= set(TABLE[package])
    # the table lets these two import all packages in the rows below them
    if package not in ('rog_cli', 'rog_studies'):
        assert used == set(TABLE[package]), 'the table names what is not imported'


@pytest.mark.parametrize('package', PLACES)
def test_package_xml_names_what_is_imported(package):
    named = manifest(package, 'depend', 'exec_depend')
    used = modules(package) - OPTIONAL - ON_NEED.get(package, set())
    assert {KEYS.get(module, module) for module in used} <= named
    others = {key for key in named if key.startswith('python3-')}
    assert others <= {KEYS.get(module) for module in used}, 'named and not imported'
    text = (PLACES[package].parent / 'setup.py').read_text()
    required = re.search(r'install_requires=\[(.*?)\]', text, re.S)[1]
    assert {PIP.get(module, module) for module in used if module in KEYS} == {
        re.match(r"'([\w.-]+)", one.strip())[1] for one in required.split(',') if one.strip()
    }


def output_of(folder, program, *arguments):
    """Run a program in a fork, where PyTorch is loaded already; return its output."""
    path = folder / 'program.py'
    path.write_text(f'{FORGET}import importlib\n{program}')
    with Forked(PROGRAMS, [str(path), *arguments]) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def test_a_robot_needs_neither_the_laboratory_nor_pictures(tmp_path):
    """Every file of what a robot installs is imported without the packages that it lacks."""
    names = ['.'.join(file.relative_to(PLACES[package].parent).with_suffix('').parts)
             for package in ON_ROBOTS for file in sorted(PLACES[package].rglob('*.py'))
             if file.stem not in ('__main__', 'sitecustomize', 'plot_style', 'plots', 'picture')]
    program = f"""
forget(*{NOT_ON_ROBOTS})
for name in {names}:
    importlib.import_module(name.removesuffix('.__init__'))
print('imported all')
"""
    assert output_of(tmp_path, program) == 'imported all\n'


@cache
def local_modules():
    """Return the modules in the folders of helpers for tests; pytest.ini adds them to the path."""
    return {file.stem for where in ('testing', '*/test', '*/bench', 'ros2_ws/src/*/test',
                                    'ros2_ws/src/*/bench', '*/test/*', 'ros2_ws/src/*/test/*',
                                    '*/bench/*', 'ros2_ws/src/*/bench/*')
            for file in ROOT.glob(f'{where}/*.py')}


@cache
def needs(package):
    """Return the packages of this suite that are built before ``package``.

    The tests of those packages cannot use ``package``.
    """
    below = manifest(package, 'depend', 'exec_depend') & set(PLACES)
    return below.union(*map(needs, below))


@pytest.mark.parametrize('package', PLACES)
def test_package_xml_names_what_its_tests_import(package):
    place = PLACES[package].parent
    used = {'pytest'}.union(*map(imported, [place / 'test', place / 'bench']))
    above = {other for other in PLACES if package in needs(other) | manifest(other, 'test_depend')}
    named = manifest(package, 'depend', 'exec_depend', 'test_depend')
    used -= local_modules() | above | OPTIONAL | {package, 'a_package_that_nobody_has'}
    assert {(KEYS | TEST_KEYS).get(module, module) for module in used} <= named


@pytest.mark.parametrize('package', sorted(PLACES))
def test_no_file_imports_one_that_imports_it(package):
    """The imports between the files of a package form no cycle.

    Imports in functions, and those for type checkers, count too.
    """
    if package in CIRCLES:
        with pytest.raises(CycleError):
            TopologicalSorter(graph(PLACES[package])).prepare()
    # Raises CycleError, whose text names the files.
    TopologicalSorter(graph(PLACES[package], typed=package not in CIRCLES)).prepare()


def graph(root, typed=True):
    """Return a dict: file -> the files of the same package that it imports.

    `typed`: whether to count imports that are only for type checkers.
    """
    files = {'.'.join([root.name, *path.relative_to(root).with_suffix('').parts])
             .removesuffix('.__init__'): path for path in root.rglob('*.py')}
    return {name: set(imported_by(name, path, files, typed)) - {name}
            for name, path in files.items()}


def imported_by(name, path, files, typed):
    """Yield the package's files that a file imports; `typed`: see `graph`."""
    unused = {inner for node in nodes(path) if isinstance(node, ast.If) and not typed
              and 'TYPE_CHECKING' in ast.dump(node.test) for inner in ast.walk(node)}
    own = name.split('.') if path.name == '__init__.py' else name.split('.')[:-1]
    for node in nodes(path):
        if isinstance(node, ast.Import) and node not in unused:
            yield from (alias.name for alias in node.names if alias.name in files)
        if node in unused or not isinstance(node, ast.ImportFrom):
            continue
        base = [*own[:len(own) - node.level + 1], *(node.module or '').split('.')] if node.level \
            else (node.module or '').split('.')
        module = '.'.join(part for part in base if part)
        for alias in node.names:
            inner = f'{module}.{alias.name}'
            yield from (m for m in (inner if inner in files else module,) if m in files)


def rooms():
    """Return a dict: package -> room -> the rooms whose files it may import.

    A room is a folder of a package. Files may also import files of their own room. The function
    reads the tables in CONTRIBUTING.
    """
    text = (ROOT / 'CONTRIBUTING.md').read_text()
    return {package: {room: re.findall(r'`(\w+)`', below) for room, below in
                      re.findall(r'^\| `(\w+)/` \| .*? \| (.*?) \|$', section, re.M)}
            for package, section in
            re.findall(r'^## Inside `(\w+)`\n(.*?)(?=^## )', text, re.M | re.S)}


# In rog_core some rooms (see `rooms`) are a single file, not a folder. So its table in CONTRIBUTING
# has another form, and the rooms are listed here.
CORE = {
    'method_check': {'loopback', 'server', 'methods', 'codecs', 'protocol', 'errors'},
    'warm_up': {'loopback', 'methods', 'codecs', 'protocol', 'arrays'},
    'loopback': {'shell', 'server', 'worker', 'methods', 'model', 'protocol', 'errors'},
    'upstream': {'server', 'worker', 'model', 'protocol', 'arrays', 'errors'},
    'server': {'methods', 'transfer', 'model', 'codecs', 'patience', 'protocol', 'arrays',
               'errors'},
    'worker': {'transfer', 'model', 'codecs', 'protocol', 'arrays', 'errors'},
    'methods': {'transfer', 'model', 'codecs', 'protocol', 'arrays', 'errors', 'plugins'},
    'transfer': {'model', 'codecs', 'protocol', 'arrays', 'errors'},
    'model': {'codecs', 'arrays', 'errors'},
    'codecs': {'cuda', 'arrays', 'errors', 'plugins'},
    'messages': {'protocol'},  # methods of other packages may import `rog_core.messages`
    'steps': {'protocol'},
    'patience': {'protocol'},
    'shell': {'protocol'},
    'protocol': {'errors'},
    'arrays': {'cuda'},
    'cuda': set(),
    'errors': set(),
    'plugins': set(),
}
ROOMS = {package: table for package, table in rooms().items() if table} | {'rog_core': CORE}
HOUSES = ('rrto_bridge', 'rog_core', 'fleet_env', 'rog_cli')  # packages with rooms, see `rooms`
CIRCLES = ('lopinfer_node',)  # packages in which files import each other for type checkers


@pytest.mark.parametrize('package', HOUSES)
def test_arrows_between_rooms_run_one_way(package):
    rooms = list(ROOMS[package])
    for number, (room, below) in enumerate(ROOMS[package].items()):
        assert set(below) <= set(rooms[number + 1:]), room
    files = graph(PLACES[package])
    assert {room_of(name, rooms) for name in files} == {'', *rooms}, 'a room has no file'
    assert not wrong_arrows(files, ROOMS[package])


@pytest.mark.parametrize('package', PLACES)
def test_no_object_is_constructed_with_the_object_that_owns_it(package):
    assert parts(PLACES[package]) == {}


def wrong_arrows(files, rooms):
    """Return the imports that the table ``rooms`` forbids, each as (file, imported file).

    All rooms may import a file that is in no room; such a file may not import a room.
    """
    return [(name, other) for name, others in files.items() for other in others
            if room_of(other, rooms) not in (
                room_of(name, rooms), '', *rooms.get(room_of(name, rooms), ()))]


def room_of(name, rooms):
    """Return the room of a file; '' if the file is in no room."""
    return next((room for room in rooms if name.split('.')[1:2] == [room]), '')


def parts(root):
    """Return a dict: class -> the classes of the package whose objects it owns and gives itself.

    An object is owned if it is stored in the owner, or nowhere. Such a part holds the whole: what
    it does is read in two files. It should get what it needs, or be part of the class.
    """
    classes = {node.name: node for path in root.rglob('*.py') for node in nodes(path)
               if isinstance(node, ast.ClassDef)}
    found = {}
    for owner, body in classes.items():
        for node in ast.walk(body):
            made = node.value if isinstance(node, ast.Expr) or isinstance(
                node, (ast.Assign, ast.AnnAssign)) and isinstance(
                    getattr(node, 'target', None) or node.targets[-1], ast.Attribute) else None
            if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) \
                    and made.func.id in classes and any(
                        isinstance(given, ast.Name) and given.id == 'self'
                        for given in [*made.args, *(word.value for word in made.keywords)]):
                found.setdefault(owner, set()).add(made.func.id)
    return found


def test_the_checks_of_rooms_find_what_they_are_for(tmp_path):
    root = tmp_path / 'house'
    files = {'__init__': '', 'zero': 'from .below import two',
             'above/one': 'from ..below import two',
             'below/two': 'import house.below.three\n'
                          'if TYPE_CHECKING:\n    from ..above.one import One',
             'below/three': 'from .two import Two',
             'below/four': 'class Four:\n    def __init__(self):\n'
                           '        self.part, self.value = Part(self), 1\n'
                           '        self.own = Part(1)\n        Part(whole=self)\n'
                           '    def other(self):\n        return Part(self)\n'
                           'class Five:\n    def __init__(self):\n        self.part = Part(self)\n'
                           'class Part:\n    pass'}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).with_suffix('.py').write_text(text)
    found = graph(root)
    assert found['house.above.one'] == {'house.below.two'}
    assert found['house.below.two'] == {'house.above.one', 'house.below.three'}
    with pytest.raises(CycleError):
        TopologicalSorter(found).prepare()
    may = {'above': ('below',), 'below': ()}
    assert sorted(wrong_arrows(found, may)) == [('house.below.two', 'house.above.one'),
                                                ('house.zero', 'house.below.two')]
    assert parts(root) == {'Four': {'Part'}, 'Five': {'Part'}}


# Imports each module without rclpy, and prints those that would load rclpy before fleet_ros.
FIRST = """
for name in sys.argv[1:]:
    forget('rclpy')
    try:
        importlib.import_module(name)
    except ImportError as error:
        if not str(error.name).startswith('rclpy') or 'fleet_ros' not in sys.modules:
            print(name, error)
"""


def test_what_users_start_loads_fleet_ros_which_checks_shared_memory_before_rclpy(tmp_path):
    started = [module for setup in ROOT.glob('ros2_ws/src/*/setup.py')
               for module in re.findall(r"= ?([\w.]+):\w+'", setup.read_text())]
    verbs = [f'rog_cli.commands.{path.stem}' for path in
             ROOT.glob('ros2_ws/src/rog_cli/rog_cli/commands/*.py')]
    wanted = [*started, *verbs, 'rog_worker.connect', 'lopinfer_node.api']
    assert len(started) > 10
    assert output_of(tmp_path, FIRST, *wanted) == ''


def test_files_of_tests_have_distinct_names():
    """So a traceback names one file, and pytest can run several packages in one process."""
    names = [path.name for pattern in ('ros2_ws/src/*/test', '*/test', 'testing')
             for path in ROOT.glob(f'{pattern}/test_*.py')]
    assert sorted({name for name in names if names.count(name) > 1}) == []
