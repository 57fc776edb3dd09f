"""What a fleet trains: the interface of a task, and its loading by name.

Every machine makes a task from the same seed and options. Equal arguments must give equal models
and equal batches, because robots and server never exchange data, only rows of parameters.
"""

import difflib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rog_tasks.errors import TaskError
from rog_tasks.loading import load_object

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from rog_tasks.sources import Source

ROUNDING = 1e-6  # tolerance for a metric outside 0 to 1: a mean of float32 may be 1.0000001
_REQUIRED = ('model', 'batches', 'loss', 'evaluate')


class Task(ABC):
    """A model, its data, its loss and its metric.

    A user's class may derive from `Task`, or only have the methods ``model``, ``batches``, ``loss``
    and ``evaluate``. The constructor gets the options as keyword arguments; it also gets ``seed``
    if it has a parameter of this name.
    """

    batch_size: int = 24
    """Samples in a batch of one robot; set from the fleet file before ``batches`` is called."""

    sources: Sequence['Source'] = ()
    """Sources of the task's images. A robot's node subscribes to their topics and publishes their
    reports."""

    @abstractmethod
    def model(self) -> 'nn.Module':
        """Return a new model; equal seeds must give equal models.

        Robots exchange its trained parameters and buffers, such as the statistics of batch
        normalisation.
        """

    @abstractmethod
    def batches(self, rank: int, world: int) -> Iterator[Any]:
        """Yield the batches of robot ``rank`` of ``world``, without end.

        Equal seeds must give equal batches.
        """

    @abstractmethod
    def loss(self, model: 'nn.Module', batch: Any) -> 'Tensor':
        """Return the loss of ``model`` on one batch, a scalar that can be differentiated."""

    @abstractmethod
    def evaluate(self, model: 'nn.Module') -> float:
        """Return the metric (0 to 1) on data like the robots' data; do not change the model."""

    def shard(self, rank: int, world: int) -> Iterator[Any]:
        """Yield the data of robot ``rank`` of ``world`` once; every call must yield the same data.

        The data come in batches of at most ``batch_size``. Training methods that need the gradient
        of a whole shard (SVRG) call this function.
        """
        raise TaskError(_without_shard(type(self)))

    def pretrain(self, model: 'nn.Module') -> None:  # noqa: B027 (nothing is a fair default)
        """Change a new model, in place, to its state before online training.

        Only the server calls this method.
        """

    def evaluate_clean(self, model: 'nn.Module') -> float:
        """Return the metric (0 to 1) on data before a change such as fog; NaN without a change."""
        return math.nan

    def portrait(self, model: 'nn.Module') -> 'Mapping[str, NDArray[Any]]':
        """Return small arrays, by name, for figures of the final model; by default none.

        A run in virtual time calls this for the model of every robot and of the server.
        `rog_sim.figures` draws these arrays. For a robot: ``truth`` and ``estimate``, positions
        (n, 3) in m. For the server: ``top`` (rows, columns, 3), the colours, 0 to 1, seen from
        above; ``height`` (rows, columns) in m; ``extent``, (lowest x, highest x, lowest y, highest
        y) in m.
        """
        return {}


def _without_shard(cls: type) -> str:
    return (f'{cls.__name__} does not implement shard(rank, world), one pass over the data of a '
            'robot in batches, which this method of training needs')


class _Plain(Task):
    """Wraps an object that has a task's methods but is not a :class:`Task`."""

    def __init__(self, inner: Any):
        self._inner = inner
        self.sources = getattr(inner, 'sources', ())

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == 'batch_size':
            self._inner.batch_size = value

    def model(self) -> 'nn.Module':
        return self._inner.model()

    def batches(self, rank: int, world: int) -> Iterator[Any]:
        return self._inner.batches(rank, world)

    def loss(self, model: 'nn.Module', batch: Any) -> 'Tensor':
        return self._inner.loss(model, batch)

    def evaluate(self, model: 'nn.Module') -> float:
        return self._inner.evaluate(model)

    def shard(self, rank: int, world: int) -> Iterator[Any]:
        if not hasattr(self._inner, 'shard'):
            raise TaskError(_without_shard(type(self._inner)))
        return self._inner.shard(rank, world)

    def pretrain(self, model: 'nn.Module') -> None:
        if hasattr(self._inner, 'pretrain'):
            self._inner.pretrain(model)

    def evaluate_clean(self, model: 'nn.Module') -> float:
        if hasattr(self._inner, 'evaluate_clean'):
            return self._inner.evaluate_clean(model)
        return math.nan

    def portrait(self, model: 'nn.Module') -> 'Mapping[str, NDArray[Any]]':
        return self._inner.portrait(model) if hasattr(self._inner, 'portrait') else {}


def load_task(spec: str, options: Mapping[str, Any] | None = None, seed: int = 0,
              batch_size: int | None = None) -> Task:
    """Make the task of the class ``spec``, which is a text ``package.module:Class``.

    :param options: keyword arguments of the constructor.
    :param seed: passed as ``seed`` if the constructor accepts an argument of this name.
    :param batch_size: number of samples in a batch; None: the number that the task itself sets.
    :raises TaskError: the module, the class or a method is missing, an option is missing or
        invalid, or the constructor fails.
    """
    cls = _found(spec)
    if batch_size is not None and batch_size < 1:
        raise TaskError(f'batch_size is {batch_size}; it must be at least 1')
    arguments = _arguments(cls, spec, dict(options or {}), seed)
    try:
        made = cls(**arguments)
    except TaskError as error:
        raise TaskError(f'task {spec!r}: {error}') from error
    except Exception as error:
        raise TaskError(f'task {spec!r}: its constructor failed with {type(error).__name__}: '
                        f'{error}') from error
    task = made if isinstance(made, Task) else _Plain(made)
    if batch_size is not None:
        task.batch_size = batch_size
    return task


def check_task(spec: str, options: Mapping[str, Any] | None = None) -> None:
    """Check the task's class and its options, but do not make the task.

    :raises TaskError: the module, the class or a method is missing, or the constructor does not
        accept an option or needs one that is missing.
    """
    _arguments(_found(spec), spec, dict(options or {}), 0)


def _found(spec: str) -> type:
    cls = load_object(spec, 'task')
    if not inspect.isclass(cls):
        raise TaskError(f'task {spec!r} must be a class')
    missing = [name for name in _REQUIRED if not callable(getattr(cls, name, None))
               or name in getattr(cls, '__abstractmethods__', ())]
    if missing:
        raise TaskError(f'task {spec!r} does not implement {", ".join(missing)}; a task has '
                        f'{", ".join(_REQUIRED)}')
    return cls


def _arguments(cls: type, spec: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    parameters = inspect.signature(cls).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [name for name, p in parameters.items()
             if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for option in options:
        if option == 'seed':
            raise TaskError(f"task {spec!r}: seed is a setting of the fleet, not of the task")
        if option not in known and not anything:
            near = difflib.get_close_matches(option, known, 1)
            there = [name for name in known if name != 'seed']
            hint = f'did you mean {near[0]!r}?' if near else \
                f'it knows {", ".join(there)}' if there else 'it has no options'
            raise TaskError(f'task {spec!r} has no option {option!r}; {hint}')
    for name, value in options.items():
        if name in known and parameters[name].annotation in (int, 'int') \
                and isinstance(value, float):
            raise TaskError(f'task {spec!r}: {name} must be a whole number, got {value}')
    if 'seed' in known or anything:
        options['seed'] = seed
    for name in known:
        if parameters[name].default is inspect.Parameter.empty and name not in options:
            raise TaskError(f'task {spec!r} needs the option {name!r}')
    return options


def measure(task: Task, model: 'nn.Module') -> float:
    """Return the task's metric of a model, 0 to 1, without gradients and in evaluation mode.

    :raises TaskError: the task does not return a metric.
    """
    return _metric(task.evaluate, model, 'evaluate')


def measure_clean(task: Task, model: 'nn.Module') -> float:
    """Return the result of `Task.evaluate_clean` for a model; NaN if the data never change.

    The model is measured without gradients and in evaluation mode.

    :raises TaskError: the task does not return a metric.
    """
    return _metric(task.evaluate_clean, model, 'evaluate_clean')


def _metric(evaluate: Callable[['nn.Module'], Any], model: 'nn.Module', what: str) -> float:
    import torch

    # Save the mode of each module, because some may be in training mode and others not.
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            value = evaluate(model)
    finally:
        for module, training in modes:
            module.training = training
    try:
        metric = float(value)
    except (TypeError, ValueError, RuntimeError):
        metric = math.inf
    if not (math.isnan(metric) or -ROUNDING <= metric <= 1 + ROUNDING):
        raise TaskError(f'{what}(model) returned {str(value)[:80]!r}; it must return a number from '
                        '0 to 1, such as 0.92 for 92 %, or NaN where there is none')
    return metric


def prepare(task: Task, model: 'nn.Module') -> None:
    """Change a new model, in place, to its state before online training.

    Only the server calls this function.

    :raises TaskError: `Task.pretrain` changes a frozen parameter, or changes which
        parameters are frozen. Both are refused because robots get no frozen parameters from the
        server.
    """
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    fixed = {name: p.detach().clone() for name, p in model.named_parameters()
             if not p.requires_grad}
    task.pretrain(model)
    now = dict(model.named_parameters())
    if [name for name, p in now.items() if p.requires_grad] != trained:
        raise TaskError('pretrain(model) changed which parameters are trained; decide that in '
                        'model(), which all machines call')
    for name, before in fixed.items():
        if not before.equal(now[name]):
            raise TaskError(f'pretrain(model) changed {name}, which is frozen: robots get from the '
                            'server only what is trained. Set it in model(), which all machines '
                            'call')


def endless(task: Task, rank: int, world: int) -> Iterator[Any]:
    """Return robot ``rank``'s batches; raise `TaskError` if the task returns no iterable."""
    batches = task.batches(rank, world)
    if not isinstance(batches, Iterable):
        raise TaskError(f'batches(rank, world) returned {type(batches).__name__}; it must yield '
                        'batches')
    return iter(batches)


def next_of(batches: Iterator[Any]) -> Any:
    """Return the next batch of an iterator from `endless`; raise `TaskError` if there is none."""
    try:
        return next(batches)
    except StopIteration:
        raise TaskError('batches(rank, world) came to an end; it must go on without end, for '
                        'example by `while True`') from None
