"""`rog models`: the versions of the model that a run has learned: list, export, choose."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from fleet_env.durable import write_whole
from fleet_env.errors import VersionError
from fleet_env.versions import (
    MODEL_FILE,
    MODELS,
    Version,
    Versions,
    check_digest,
    models_folder,
    newest_run,
)
from fleet_ros.network_options import add_network_options, join_network
from rog_ros.parameters import SERVER

from .control import add_options
from .control import run as run_control
from .option_types import place

RUNS = Path('runs')
# format -> ends of the names of its files
FORMATS = {'safetensors': ('.safetensors',), 'pt': ('.pt', '.pth'), 'torchscript': ('.ts',),
           'export': ('.pt2',)}


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('models', help='list the models that a run has learned, export one, '
                              'or choose what followers use')
    sub = parser.add_subparsers(dest='action', required=True, metavar='ACTION')
    listed = sub.add_parser('list', help='list the versions of the model of a run')
    listed.set_defaults(run=_list)
    export = sub.add_parser('export', help='write a version to a file, for other programs')
    export.add_argument('--version', default='latest', metavar='N|best|latest',
                        help='number of the version, the one with the highest accuracy, or the '
                             'newest (default: latest)')
    export.add_argument('--to', type=place, required=True, metavar='FILE',
                        help='file for the model; the end of its name says the format')
    export.add_argument('--format', choices=FORMATS, help='safetensors or pt: the state_dict; '
                        'torchscript or export: the model with its code, made with the first batch '
                        "of the run's task (default: by the end of FILE: .safetensors, .pt or "
                        '.pth, .ts, .pt2)')
    export.set_defaults(run=_export)
    pin = sub.add_parser('pin', help='let all who follow the model of a running fleet use this '
                         'version, until another choice')
    pin.add_argument('number', type=int, metavar='N', help='number of the version')
    pin.set_defaults(call=lambda options: ('pin_model', {'number': options.number}))
    unpin = sub.add_parser('unpin', help='let them use the newest version again')
    unpin.set_defaults(call=lambda options: ('pin_model', {'number': 0}))
    back = sub.add_parser('rollback', help='let them use the version before the one that is '
                          'offered now')
    back.set_defaults(call=lambda options: ('pin_model', {'number': -1}))
    serve = sub.add_parser('serve', help='offer the model of a run that is over, or of `rog sim`, '
                           'to those who follow it, until Ctrl+C')
    serve.add_argument('--key', default='', metavar='FILE', help="the fleet's key, if it has one "
                       '(default: FLEET_KEY)')
    add_network_options(serve)
    serve.set_defaults(run=_serve)
    for one in (pin, unpin, back):
        one.add_argument('--run', type=place, dest='directory', metavar='RUN', help='folder of a '
                         'run that no fleet trains (default: the running fleet)')
        add_options(one)
        one.set_defaults(run=_choose)
    for one in (listed, export, serve):
        one.add_argument('directory', type=place, nargs='?', metavar='RUN',
                         help='folder of the run (default: the newest one in ./runs)')


def _list(options: argparse.Namespace) -> int:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    store = _store(options.directory)
    versions, latest, best = store.listed(), store.latest(), store.best()
    table = Table(title=f'{store.folder.parent}', title_justify='left', box=box.SIMPLE_HEAD,
                  pad_edge=False, show_edge=False)
    for column in ('version', 'iteration', 'accuracy', 'written', 'MB', ''):
        table.add_column(column, justify='left' if column in ('written', '') else 'right')
    for version in versions:
        file = store.path(version.number) / MODEL_FILE
        size = f'{file.stat().st_size / 1e6:.2f}' if file.exists() else 'no file'
        marks = [mark for mark, number in (('latest', latest), ('best', best))
                 if number == version.number]
        table.add_row(str(version.number), str(version.iteration), _accuracy(version),
                      version.time, size, ', '.join(marks))
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    for skipped in store.skipped:
        print(f'rog: {skipped}', file=sys.stderr)
    return 0


def _choose(options: argparse.Namespace) -> int:
    if options.directory is None:
        return run_control(options)
    print(_store(options.directory).choose(options.call(options)[1]['number']))
    return 0


def _serve(options: argparse.Namespace) -> int:
    """Offer the versions in the folder of a run, and each new one that appears there."""
    store = _store(options.directory)
    namespace = f'{join_network(options).namespace}/{SERVER}'
    print('some 5 s, to load PyTorch and to see whether another server offers a model here',
          file=sys.stderr, flush=True)
    from fleet_link.key import read_key
    from fleet_models.errors import FollowError
    from fleet_models.standing import Standing
    from fleet_ros.ending import Interruption
    from fleet_ros.exposure import key_file

    path = key_file(options.key)
    interruption = Interruption()
    try:
        with interruption.raised(), Standing(namespace, store, read_key(path) if path else None,
                                             print) as standing:
            standing.run()
    except FollowError as error:
        raise VersionError(str(error)) from None
    except KeyboardInterrupt:
        return 128 + interruption.number if interruption.number != signal.SIGINT else 0
    return 0


def _export(options: argparse.Namespace) -> int:
    kind = options.format or _format_of(options.to)
    if not options.to.parent.is_dir():  # known before a program is traced, which takes a while
        raise VersionError(f'--to {options.to}: its folder must exist, but {options.to.parent} '
                           'does not; make it first')
    store = _store(options.directory)
    version = store.read(_number(store, options.version))
    file = store.path(version.number) / MODEL_FILE
    content = file.read_bytes()
    check_digest(file, content)
    if kind == 'pt':
        content = _pickled(content)
    elif kind != 'safetensors':
        print('rog: makes a program of the model: some seconds, for a large one minutes',
              file=sys.stderr, flush=True)
        content = _with_code(store.folder.parent, file, kind)
    try:
        write_whole(options.to, content)
    except OSError as error:
        raise VersionError(f'--to {options.to} cannot be written: {error.strerror}') from error
    print(f'wrote {options.to}: version {version.number} of {store.folder.parent}, iteration '
          f'{version.iteration}, accuracy {_accuracy(version)}')
    return 0


def _store(directory: Path | None) -> Versions:
    """Return the versions of the run that the user has named, or of the newest one."""
    run = directory
    if run is None:
        run = newest_run(RUNS.iterdir()) if RUNS.is_dir() else None
        if run is None:
            raise VersionError(f'no folder in {RUNS.absolute()} holds a model; give the folder of '
                               'a run')
    if not run.is_dir():
        found = 'is a file' if run.exists() else 'does not exist'
        raise VersionError(f'{run} must be the folder of a run, but it {found}')
    store = Versions(models_folder(run))
    if not store.numbers():
        raise VersionError(f'{run} has no version of a model ({MODELS}/1); a run that ended before '
                           'its first evaluation, or of an earlier version of rog, has none')
    return store


def _number(store: Versions, chosen: str) -> int:
    if chosen == 'latest':
        return store.latest()
    if chosen == 'best':
        if number := store.best():
            return number
        raise VersionError('--version best: no version has an accuracy, because the task measures '
                           'none; choose a number or latest')
    numbers = store.numbers()
    if not chosen.isdecimal() or int(chosen) not in numbers:
        raise VersionError(f'--version must be best, latest or one of '
                           f'{", ".join(map(str, numbers))}, got {chosen!r}')
    return int(chosen)


def _format_of(file: Path) -> str:
    known = {end: kind for kind, ends in FORMATS.items() for end in ends}
    if file.suffix not in known:
        raise VersionError(f'--to {file}: its name must end in one of {", ".join(known)}, or give '
                           '--format')
    return known[file.suffix]


def _accuracy(version: Version) -> str:
    return f'{100 * version.accuracy:.1f} %' if version.measured else '-'


def _pickled(content: bytes) -> bytes:
    """Return the file that torch.save writes for the tensors of a safetensors file."""
    import io

    import torch
    from safetensors.torch import load

    file = io.BytesIO()
    torch.save(load(content), file)
    return file.getvalue()


def _with_code(run: Path, file: Path, kind: str) -> bytes:
    """Return the file of a model with its code."""
    from fleet_env.settings.fleet_file import FLEET_FILE, find_tasks, read_run_fleet
    from fleet_env.weights import load_weights
    from rog_tasks.export import exported
    from rog_tasks.failure import named_failures
    from rog_tasks.task import load_task

    if not (run / FLEET_FILE).is_file():
        raise VersionError(f'{run} has no {FLEET_FILE}, which names the task; export the weights '
                           'alone (--format safetensors)')
    fleet = read_run_fleet(run)
    find_tasks(fleet)
    training = fleet.training
    task = load_task(training.task, training.task_options, fleet.seed, training.batch_size)
    with named_failures(task):
        model = task.model()
    load_weights(model, file)
    return exported(task, model, kind, len(fleet.robots))
