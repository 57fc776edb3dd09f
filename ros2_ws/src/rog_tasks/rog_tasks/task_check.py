"""Tries a task out before a fleet starts: one batch, forwards and backwards, and what is odd."""

import math
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rog_tasks.errors import TaskError, some
from rog_tasks.failure import named_failures
from rog_tasks.sources import CameraSource
from rog_tasks.task import Task, endless, measure, next_of

if TYPE_CHECKING:
    from torch import Tensor, nn

REPEATED = 1.0  # s; a gradient that takes less is computed `TIMES` times, since the first is slow
TIMES = 3
EVALUATION = 2.0  # s after which the check stops an evaluation
OLD = 0.003     # share of the first values below which the statistics of a BatchNorm are old enough
NAMED = 3       # number of parameters or layers that a note names


@dataclass(frozen=True)
class TaskCheck:
    """What one batch has shown about a task."""

    model: str         # name of the model's class
    parameters: int    # number of elements of all parameters
    frozen: int        # those that are not trained
    buffers: int       # number of buffers, such as the statistics of batch normalisation
    seconds: float     # duration of a gradient on one core, or on the GPU
    memory: int        # bytes of the model, its gradients, and what the backward pass needs
    loss: float
    momentum: float    # smallest momentum of a BatchNorm; NaN: none has one
    odd: tuple[str, ...]  # what the user may not have meant, a sentence each


def live_topic(task: Task) -> str:
    """Return the topic of a live source, which gives no batch before the fleet runs; or ''."""
    return next((source.image_topic for source in task.sources
                 if isinstance(source, CameraSource)), '')


def young_share(model: 'nn.Module') -> float:
    """Return which share of the statistics of a BatchNorm is still that of the start; 0 to 1.

    It is that of the BatchNorm with the largest share, and 0 below `OLD`.
    """
    from torch import nn

    shares = [(1 - layer.momentum) ** int(layer.num_batches_tracked) for layer in model.modules()
              if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is not None
              and layer.num_batches_tracked is not None]
    share = float(max(shares, default=0.0))
    return share if share >= OLD else 0.0


def try_out(task: Task, model: 'nn.Module', rank: int = 0, world: int = 1) -> TaskCheck:
    """Compute gradients of one batch of robot ``rank`` on ``model``, and evaluate the model.

    This takes a batch from the task and changes the model's buffers and gradients, so give it a
    task and a model that nobody trains. Random states of PyTorch, numpy and Python are restored.

    :raises TaskError: the task cannot be trained: its code fails, the loss is NaN, or the loss
        does not depend on the parameters.
    """
    with _same_dice(), named_failures(task):
        batch = next_of(endless(task, rank, world))
        watch = _Watch(model)
        seconds, memory, loss = _gradient(task, model, batch, watch)
        for _ in range(TIMES - 1 if seconds < REPEATED else 0):
            seconds = min(seconds, _gradient(task, model, batch, watch)[0])
        odd = [*watch.notes(), *_without_gradient(model)]
        watch.close()
        odd += _evaluation(task, model)
    parameters = list(model.parameters())
    return TaskCheck(
        type(model).__name__, sum(p.numel() for p in parameters),
        sum(p.numel() for p in parameters if not p.requires_grad), len(list(model.buffers())),
        seconds, memory, loss, watch.momentum, tuple(odd))


def _gradient(task: Task, model: 'nn.Module', batch: Any, watch: '_Watch'
              ) -> tuple[float, int, float]:
    """Return seconds, bytes of memory, and the loss of one forward and backward pass."""
    import torch

    model.zero_grad()
    kept: dict[int, int] = {}  # place of each storage that the backward pass needs -> its bytes

    def keep(tensor: 'Tensor') -> 'Tensor':
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    own = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
           for t in (*model.parameters(), *model.buffers()) if t.layout == torch.strided}
    began = time.perf_counter()
    with watch.named_layer(), torch.autograd.graph.saved_tensors_hooks(keep, lambda same: same):
        loss = task.loss(model, batch)
    _require_loss(loss)
    loss.backward()
    value = float(loss.detach())  # waits for a GPU
    seconds = time.perf_counter() - began
    # of an embedding, a sparse one becomes dense when it is pushed
    gradients = sum(p.nbytes for p in model.parameters() if p.grad is not None)
    return seconds, sum({**own, **kept}.values()) + gradients, value


def _require_loss(loss: Any) -> None:
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f'a tensor of shape {tuple(loss.shape)}' if isinstance(loss, torch.Tensor) \
            else type(loss).__name__
        raise TaskError(f'loss(model, batch) returned {what}; it must return a scalar tensor')
    if not loss.requires_grad:
        raise TaskError('loss(model, batch) does not depend on a parameter that is trained: '
                        'compute it from the output of the model, without detach(), item() or '
                        'no_grad(), and let some parameter require a gradient')
    if not math.isfinite(value := float(loss.detach())):
        raise TaskError(f'the loss of the first batch is {value}: look for a logarithm of 0, a '
                        'division by 0, NaN in the data, or far too large inputs')


def _without_gradient(model: 'nn.Module') -> list[str]:
    names = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    return [f'the first batch gives no gradient to {some(names, NAMED)}: does the loss use '
            f'{"it" if len(names) == 1 else "them"}?'] if names else []


def _evaluation(task: Task, model: 'nn.Module') -> list[str]:
    """Return what is odd about the metric of the model; nothing if it takes too long."""
    try:
        with _time_limit(EVALUATION):
            metric = measure(task, model)
    except _TooLong:
        return []
    return ['evaluate(model) returns NaN, so that nobody sees whether the fleet learns'] \
        if math.isnan(metric) else []


class _Watch:
    """Looks at the layers of a model while it computes."""

    def __init__(self, model: 'nn.Module') -> None:
        from torch import nn

        self._model, self._single, self._running = model, '', ''
        self._evaluating: dict[str, None] = {}
        self._before = {name: b.shape for name, b in model.named_buffers()}
        self._frozen = {name: (p, p._version) for name, p in model.named_parameters()
                        if not p.requires_grad}
        norms = {name: layer for name, layer in model.named_modules()
                 if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
        self._norms = norms
        drops = {name: layer for name, layer in model.named_modules()
                 if isinstance(layer, nn.modules.dropout._DropoutNd)}
        self._hooks = [layer.register_forward_pre_hook(self._hook(name))
                       for name, layer in (norms | drops).items()]

    @property
    def momentum(self) -> float:
        """The smallest momentum of a BatchNorm that keeps statistics; NaN if there is none."""
        return min((float(layer.momentum) for layer in self._norms.values()
                    if layer.track_running_stats and layer.momentum is not None), default=math.nan)

    def _hook(self, name: str) -> Any:
        def look(layer: 'nn.Module', inputs: tuple[Any, ...]) -> None:
            if not layer.training:
                self._evaluating[name] = None
            elif name in self._norms and inputs:
                values = inputs[0]
                self._single = name if values.numel() == values.shape[1] else self._single
        return look

    @contextmanager
    def named_layer(self) -> Iterator[None]:
        """Name the BatchNorm that got one sample, in place of PyTorch's error."""
        try:
            yield
        except ValueError as error:
            if not self._single:
                raise
            raise TaskError(
                f'the BatchNorm {self._single or "of the model"} gets one value per channel, of '
                'which it can compute no variance: let batches(rank, world) yield two samples or '
                'more (training.batch_size), or use GroupNorm or LayerNorm') from error

    def notes(self) -> list[str]:
        """Return what is odd, after the model has computed."""
        odd = []
        if self._evaluating:
            odd.append(f'in eval mode while it is trained: {some(list(self._evaluating), NAMED)}; '
                       'if that is not on purpose, call model.train() in model() or loss()')
        grown = [name for name, b in self._model.named_buffers()
                 if self._before.get(name) != b.shape]
        if grown:
            odd.append(f'buffers whose shape changes stay on each robot: {some(grown, NAMED)}')
        moved = [name for name, (p, version) in self._frozen.items() if p._version != version]
        if moved:
            odd.append(f'the loss changes frozen parameters in place: {some(moved, NAMED)}; such '
                       'a change stays on each robot, so the server keeps the values of model(). '
                       'Make them buffers (register_buffer) to exchange them')
        return odd

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()


class _TooLong(Exception):
    pass


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_TooLong` after ``seconds``; only in the main thread, elsewhere there is no limit."""
    def stop(*_: Any) -> None:
        raise _TooLong

    try:
        former = signal.signal(signal.SIGALRM, stop)
    except ValueError:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)


@contextmanager
def _same_dice() -> Iterator[None]:
    """Restore the random states of Python, numpy and PyTorch at the end."""
    import numpy as np
    import torch

    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 (of the task)
    # A process that was forked after CUDA was used cannot use it, not even to ask its random state.
    devices: list[int] | None = [] if torch.cuda._is_in_bad_fork() else None
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
