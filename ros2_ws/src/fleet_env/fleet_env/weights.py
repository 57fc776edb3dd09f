"""Reads the weights of a model from a version or a file of a user, and writes those of a version.

A node without a model must not wait for PyTorch, so only the functions import it.
"""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet_env.durable import read_file
from fleet_env.errors import VersionError, WeightsError, why_unread
from fleet_env.versions import check_digest, find_model

if TYPE_CHECKING:
    from torch import Tensor, nn

PICKLED = ('.pt', '.pth', '.bin', '.ckpt')   # ends of the names of files that torch.save writes
_SERVERS = 'rog/'   # beginning of the names in a checkpoint that are not of the model


def state_bytes(model: nn.Module) -> bytes:
    """Return a model's `state_dict()` as a safetensors file, with every key and in its types.

    The file holds a copy of a tied weight for each of its names.

    :raises WeightsError: a value of the state is not a tensor, or is of a kind that a safetensors
        file cannot hold.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save

    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise WeightsError(f'{name!r} in the state_dict of the model is of type '
                               f'{type(value).__name__}; a version can hold only tensors')
    try:
        return save({name: value.detach().cpu().contiguous().clone()
                     for name, value in state.items()}, {'format': 'pt'})
    except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
        raise WeightsError(f'the state_dict of the model does not fit into a safetensors file: '
                           f'{error}') from error


def load_weights(model: nn.Module, place: str | os.PathLike[str]) -> Path:
    """Fill a model, in place, from what a user names; return the file that was read.

    :param place: a file that holds a state_dict (.safetensors, or .pt and .pth of `torch.save`);
        or a version, a folder of versions or the folder of a run, see
        `fleet_env.versions.find_model`.
    :raises VersionError: there is no such file. `WeightsError`: it cannot be read, or its tensors
        do not fit the model; the message names the first of them. The model is unchanged.
    """
    file = find_model(place)
    state, of_server = _state_of(file)
    require_fit(model, state, file, of_server)
    try:
        model.load_state_dict(state)
    except Exception as error:   # a module of a user may load its state in its own way
        raise WeightsError(f'{file} does not fit the model: {str(error)[:400]}') from error
    return file


def _state_of(file: Path) -> tuple[dict[str, Tensor], bool]:
    """Return the tensors of a model by name, and whether the file is a checkpoint of a server."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        if file.suffix in PICKLED:
            found = torch.load(file, map_location='cpu', weights_only=True)
        else:
            content = read_file(file)
            check_digest(file, content)
            found = load(content)
    except OSError as error:
        raise WeightsError(f'{file} cannot be read: {why_unread(error, file)}') from error
    except SafetensorError as error:
        raise WeightsError(f'{file} is not a safetensors file ({error}); the name of a file of '
                           f'torch.save must end in one of {", ".join(PICKLED)}') from error
    except VersionError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        other = re.search(r'GLOBAL (\S+)', str(error))
        why = f'has an object of {other[1]}' if other else 'is damaged, or of another program'
        raise WeightsError(f'{file} is not a state_dict of torch.save: it {why}; write it by '
                           'torch.save(model.state_dict(), FILE)') from error
    wrong = not isinstance(found, dict) or next(
        (key for key, value in found.items() if not isinstance(value, torch.Tensor)), None)
    if wrong is not None:
        what = f'has {wrong!r}, which is no tensor' if isinstance(found, dict) else \
            f'is of type {type(found).__name__}'
        raise WeightsError(f'{file} must hold a state_dict, names and tensors, but it {what}; '
                           'write it by torch.save(model.state_dict(), FILE)')
    mine = {name: value for name, value in found.items() if not name.startswith(_SERVERS)}
    return mine, len(mine) < len(found)


def require_fit(model: nn.Module, state: dict[str, Tensor], file: Path | str, of_server: bool
                ) -> None:
    """Check names and shapes; add the other names of tied weights, which some files leave out.

    ``file``: how an error names the state. ``of_server``: whether it is a server's checkpoint.

    :raises WeightsError: the state does not fit the model; the message names the first tensor.
    """
    mine = model.state_dict()
    at = {_memory(value): name for name, value in mine.items() if name in state}
    for name, value in mine.items():
        if name not in state and (tied := at.get(_memory(value))) is not None:
            state[name] = state[tied]
    for what, names in (('lacks', [name for name in mine if name not in state]),
                        ('has', [name for name in state if name not in mine])):
        if names:
            more = f' and {len(names) - 1} more' if len(names) > 1 else ''
            whose = 'that the model has' if what == 'lacks' else 'that the model does not have'
            hint = ("it is a checkpoint of a server, which holds what is trained; take the run's "
                    'models/latest' if of_server and what == 'lacks' else
                    'the model must be the one that was trained, with the same options')
            raise WeightsError(f'{file} {what} {names[0]!r}{more} {whose}: {hint}')
    for name, value in mine.items():
        given, wanted = _shape(state[name]), _shape(value)
        if wanted is not None and given != wanted:
            raise WeightsError(f'{file}: {name!r} has the shape {given}, and {wanted} in the '
                               'model: give the model the options, such as the number of classes, '
                               'with which it was trained')


def _memory(value: Any) -> Any:
    """Return what two names of one tensor have in common; unique for what has no memory."""
    try:
        pointer = value.data_ptr()
    except (AttributeError, RuntimeError, ValueError):   # no tensor, or without values yet
        pointer = 0
    return (pointer, value.shape, value.stride()) if pointer else id(value)


def _shape(value: Any) -> list[int] | None:
    try:
        return list(value.shape)
    except (AttributeError, RuntimeError):   # no tensor, or a lazy layer's, without a shape yet
        return None
