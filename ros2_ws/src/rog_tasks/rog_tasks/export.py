"""Exports a trained model with its code: as TorchScript, or as a program of torch.export."""

from __future__ import annotations

import inspect
import io
import warnings
from typing import TYPE_CHECKING, Any

from rog_tasks.errors import TaskError
from rog_tasks.failure import named_failures
from rog_tasks.sources import CameraSource
from rog_tasks.task import Task, endless, next_of

if TYPE_CHECKING:
    from torch import nn



def example_of(task: Task, world: int = 1) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which the task's loss first calls the model.

    The loss runs on the first batch of robot 0 of ``world``, with a new model.

    :raises TaskError: the task's images come from a live topic, or its loss does not call the
        model; `TaskFailed`: the task raises an error before that.
    """
    import torch
    from torch.utils import _pytree as pytree

    for source in task.sources:
        if isinstance(source, CameraSource):
            raise TaskError(f'the task uses the live topic {source.image_topic}, so there is no '
                            'example for the model; export the weights alone (.safetensors)')
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(module: nn.Module, given: Any, named: Any) -> None:
        if not seen:
            seen.append(pytree.tree_map_only(
                torch.Tensor, lambda value: value.detach().clone(), (given, named)))

    with named_failures(task):
        model = task.model()
        model.register_forward_pre_hook(keep, with_kwargs=True)
        try:
            task.loss(model, next_of(endless(task, 0, world)))
        except Exception:
            if not seen:   # what comes after the call does not matter here
                raise
    if not seen:
        raise TaskError("the task's loss does not call the model itself, as in model(x), so there "
                        'is no example for it; export the weights alone (.safetensors)')
    return seen[0]


def exported(task: Task, model: nn.Module, kind: str, world: int = 1) -> bytes:
    """Return the file of a model with its code; the file needs no code of the task.

    The exported model is run with the example of the task, and must give what ``model`` gives.

    :param model: the trained model of the task; it is put into eval mode.
    :param kind: ``torchscript``, for `torch.jit.load`; or ``export``, for `torch.export.load`.
        It is called as the loss calls the model. With ``export``, the first axis of each input may
        have another length, if the model allows and PyTorch is 2.6 or newer.
    :raises TaskError: PyTorch cannot export the model, or it exports another one.
    """
    import torch

    given, named = example_of(task, world)
    model.eval()
    file = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter('ignore')   # about the tracer itself; the result is checked below
            if kind == 'torchscript':
                torch.jit.save(_traced(model, given, named), file)
                file.seek(0)
                again = torch.jit.load(file)
            else:
                # PyTorch has it from 2.6 on; before, each axis is as long as in the example
                first = {0: getattr(torch.export.Dim, 'AUTO', None)}
                torch.export.save(torch.export.export(
                    model, given, named, dynamic_shapes=_shapes(model, given, named, first)), file)
                file.seek(0)
                again = torch.export.load(file).module()
            _require_equal(again(*given, **named), model(*given, **named))
    except Exception as error:   # of any kind: PyTorch's, or of the code of the user's model
        said = str(error).strip().partition('\n')[0][:300]
        raise TaskError(f'the model cannot be exported as {kind}: {type(error).__name__}: {said}; '
                        'export the weights alone (.safetensors)') from error
    return file.getvalue()


def _traced(model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    import torch

    if not named:
        return torch.jit.trace(model, given, strict=False, check_trace=False)
    bound = inspect.signature(model.forward).bind(*given, **named).arguments
    return torch.jit.trace(model, example_kwarg_inputs=dict(bound), strict=False,
                           check_trace=False)


def _shapes(model: nn.Module, given: tuple[Any, ...], named: dict[str, Any], first: Any) -> Any:
    """Return the argument dynamic_shapes, in which the first axis of each tensor is dynamic."""
    import torch
    from torch.utils import _pytree as pytree

    bound = inspect.signature(model.forward).bind(*given, **named).arguments
    return pytree.tree_map(
        lambda value: first if isinstance(value, torch.Tensor) and value.dim()
        and len(value) > 1 else None, dict(bound))


def _require_equal(got: Any, want: Any) -> None:
    import torch
    from torch.utils import _pytree as pytree

    for one, other in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
