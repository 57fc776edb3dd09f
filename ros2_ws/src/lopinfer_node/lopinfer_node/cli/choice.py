"""Options that several verbs share: model, machines, bandwidths.

PyTorch is imported where it is used, because this takes seconds: a verb first says what it does.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from fleet_env.command import at_least_one
from fleet_env.errors import PackageError

from ..errors import ModelError, ProfileError

if TYPE_CHECKING:
    import torch

    from ..model.graph import Graph
    from ..model.traced import Traced
    from ..planning.profile import Profile
    from ..planning.timeline import Costs

MOST = 1000     # maximum number of bandwidths
MODEL_HELP = ('a model of torchvision or timm, package.module:factory, or a published profile '
              '(a .csv file)')


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the model, the shape of its input, and the number of threads."""
    parser.add_argument('model', metavar='MODEL', help=MODEL_HELP)
    add_weights(parser)
    add_input(parser)
    parser.add_argument('--threads', type=at_least_one, metavar='N',
                        help="computing threads (default: PyTorch's own choice)")


def add_input(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the shape of the model's input."""
    parser.add_argument('--input', type=shape, default='1x3x224x224', metavar='1x3x224x224',
                        help='shape of the input (default: 1x3x224x224)')


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the weights of the model."""
    parser.add_argument('--weights', default='', metavar='PATH',
                        help="weights of the model: the folder of a fleet's run or of one of its "
                             'versions, or a file of a state_dict (default: its own)')


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the device of the server."""
    parser.add_argument('--device', default='cpu', metavar='DEVICE',
                        help='device of the server: cpu, cuda or cuda:N (default: cpu); several of '
                             'one kind, separated by commas, compute at the same time')


def add_machines(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the profiles of robot and server, and for the delay of the link."""
    parser.add_argument('--profile', type=Path, metavar='FILE',
                        help='profile of the robot (default: measure this machine)')
    parser.add_argument('--server-profile', type=Path, metavar='FILE',
                        help='profile of the server (default: the robot, --server-speed times as '
                             'fast)')
    parser.add_argument('--server-speed', type=above_zero, default=10.0, metavar='X',
                        help='speed of the server relative to the robot (default: 10)')
    parser.add_argument('--latency', type=not_negative, default=0.002, metavar='S',
                        help='delay of the link per direction, s (default: 0.002)')


def traced_model(options: argparse.Namespace) -> Traced:
    """Load and trace the model that the user named; first say that this takes long."""
    print(f'{options.model}: to load, trace and measure it takes seconds, for a large one minutes',
          flush=True)
    import torch

    from ..model import zoo
    from ..model.traced import trace
    if options.threads:
        torch.set_num_threads(options.threads)
    return trace(zoo.load(options.model, weights=options.weights), example_input(options.input))


def example_input(size: tuple[int, ...]) -> torch.Tensor:
    """Return zeros as a model's input; raise ModelError if they do not fit into memory."""
    import torch
    try:
        return torch.zeros(size)
    except RuntimeError as error:
        text = 'x'.join(map(str, size))
        raise ModelError(f'an input of {text} cannot be made: {str(error).splitlines()[0]}') \
            from error


def problem(options: argparse.Namespace) -> tuple[Graph, Costs]:
    """Return the graph of the chosen model and its costs on the chosen machines."""
    from ..planning.evaluate import costs_of
    from ..planning.profile import Profile
    if options.model.endswith('.csv'):
        if options.profile or options.server_profile or options.weights:
            raise ProfileError(f'{options.model} contains the profiles of its machines, and no '
                               'model; leave out --profile, --server-profile and --weights')
        readers = entry_points(group='lopinfer.profiles', name='csv')
        if not readers:
            raise ProfileError(f'{options.model}: published profiles need the package '
                               'rog_studies, which is not installed here: pip install -e studies')
        graph, device, server = next(iter(readers)).load()(options.model)
        return graph, costs_of(graph, device, server)
    traced = traced_model(options)
    robot = Profile.load(options.profile) if options.profile else measured(traced)
    robot.check(traced.graph)
    server = Profile.load(options.server_profile) if options.server_profile else \
        dataclasses.replace(robot, machine=f'{robot.machine} x {options.server_speed:g}',
                            fixed=robot.fixed / options.server_speed,
                            per_share=robot.per_share / options.server_speed)
    return traced.graph, costs_of(traced.graph, robot, server)


def say_planning(graph: Graph) -> None:
    """Say that plans are being made, and that their loops are compiled for the first ones."""
    print(f'{graph.name}: to make plans takes seconds, the first time after an installation up to '
          'a minute', flush=True)


def measured(traced: Traced, repeats: int = 7, slowdown: float = 1.0) -> Profile:
    """Measure the profile of a model on this machine; show a progress bar."""
    from ..runtime.measure import measure
    with bar(f'measuring {traced.name}') as show:
        return measure(traced, repeats, progress=show, slowdown=slowdown)


@contextmanager
def bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a progress callback (done, total), which draws a bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=1)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def print_table(head: list[str], rows: list[list[str]], title: str = '') -> None:
    """Print a table: numbers right-aligned; texts left-aligned, wrapped if space is short."""
    from rich.console import Console
    from rich.table import Table
    table = Table(title=title or None, title_justify='left', box=None, pad_edge=False)
    for name, values in zip(head, zip(*rows, strict=True), strict=True):
        number = all(v.lstrip('-')[:1].isdigit() or v in ('nan', 'inf') for v in values)
        table.add_column(name, justify='right' if number else 'left', no_wrap=number)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def shape(text: str) -> tuple[int, ...]:
    """Parse a shape such as `1x3x224x224`."""
    try:
        sizes = tuple(int(n) for n in text.lower().split('x'))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f'must be a shape such as 1x3x224x224, got {text!r}')
    return sizes


def new_file(text: str) -> Path:
    """Parse the path of a file that will be written; check it now, before a long measurement."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() \
            or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError('must be a file that can be written, in a folder that '
                                         f'exists, got {text!r}')
    return path


def picture(text: str) -> str:
    """Parse the path of a picture that will be drawn; '' stands for the default."""
    if not text:
        return text
    try:
        from fleet_env import plot_style  # noqa: F401
    except PackageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    from matplotlib.backend_bases import FigureCanvasBase
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if new_file(text).suffix.lstrip('.').lower() not in ('', *known):
        raise argparse.ArgumentTypeError(f'must end with one of .{", .".join(known)}, got {text!r}')
    return text


def bandwidths(text: str) -> tuple[float, ...]:
    """Parse bandwidths in MB/s, such as `0:30:1` or `2,5,10`; return them in bytes/s, ascending."""
    wrong = argparse.ArgumentTypeError(
        'must be from:to:step or a list such as 2,5,10, finite, at least 0, in MB/s, '
        f'got {text[:100]!r}')
    try:
        numbers = [float(n) for n in text.split(':' if ':' in text else ',')]
    except ValueError:
        raise wrong from None
    if not all(map(math.isfinite, numbers)):
        raise wrong
    low, step, count = 0.0, 0.0, float(len(numbers))
    if ':' in text:
        if len(numbers) != 3 or not numbers[2]:
            raise wrong
        low, high, step = numbers
        count = (high - low) / step + 0.5
    # Check the number before the bandwidths take memory.
    if count > MOST:
        raise argparse.ArgumentTypeError(f'must be at most {MOST} bandwidths, got {text[:100]!r}')
    if count <= 0:
        raise wrong
    listed = low + step * np.arange(math.ceil(count)) if step else np.array(numbers)
    with np.errstate(over='ignore'):
        found = np.unique(listed * 1e6)   # ascending; the step of a range can be negative
    if found.min() < 0 or not np.isfinite(found).all():
        raise wrong
    return tuple(found)



def above_zero(text: str) -> float:
    """Parse a number above 0."""
    number = float(text)
    if not 0 < number < float('inf'):
        raise argparse.ArgumentTypeError(f'must be above 0, got {text}')
    return number


def not_negative(text: str) -> float:
    """Parse a number of at least 0."""
    number = float(text)
    if not 0 <= number < float('inf'):
        raise argparse.ArgumentTypeError(f'must be at least 0, got {text}')
    return number
