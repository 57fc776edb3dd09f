"""Whether a version is taken: rules for what was announced, and for what was fetched."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from fleet_env.errors import WeightsError
from fleet_env.versions import Version
from fleet_env.weights import require_fit
from safetensors import SafetensorError
from safetensors.torch import load

from .errors import FollowError

if TYPE_CHECKING:
    from torch import Tensor, nn

MARGIN = 0.01   # a version may be so much less accurate than the one in use, by default

# Measures a model with the weights of a version: accuracy, the more the better; raises an error if
# the model must not be used.
Check = Callable[['nn.Module'], float]


@dataclass
class Use:
    """What is in use. ``version``: None: not a version. ``checked``: its value of `Check`."""

    version: Version | None = None
    checked: float = math.nan


def refusal(new: Version, use: Use, margin: float) -> str:
    """Return why a version is not taken by what the fleet knows of it; '' if it is."""
    used = use.version
    if used is None or not used.measured:
        return ''
    if not new.measured:
        return f'its accuracy is not known, that of version {used.number} in use is ' \
               f'{100 * used.accuracy:.1f} %'
    if new.accuracy < used.accuracy - margin:
        return f'its accuracy, {100 * new.accuracy:.1f} %, is below that of version ' \
               f'{used.number} in use, {100 * used.accuracy:.1f} %'
    return ''


def tensors_of(content: bytes, model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a version's file, which fit the model and are finite.

    :raises FollowError: they do not, or the file is damaged; the message names the first tensor.
    """
    try:
        state = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise FollowError(f'its file is damaged: {error}') from None
    try:
        require_fit(model, state, 'it', False)
    except WeightsError as error:
        raise FollowError(str(error)) from None
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
            tensor = tensor.float()     # PyTorch asks few things of a float8
        if (tensor.is_floating_point() or tensor.is_complex()) \
                and not bool(torch.isfinite(tensor).all()):
            raise FollowError(f'{name!r} has a value that is NaN or infinite')
    return state


def checked(check: Check, model: nn.Module) -> float:
    """Return what the user's check gives for a model with the new weights.

    :raises FollowError: the check fails.
    """
    try:
        with torch.no_grad():
            return float(check(model))
    except Exception as error:   # a user's function can raise anything
        raise FollowError(f'the check of this program: {type(error).__name__}: {error}') from error


def disapproval(found: float, use: Use, margin: float) -> str:
    """Return why a version is not taken by what the check gives for it; '' if it is."""
    if math.isnan(found) or found < use.checked - margin:
        return f'the check of this program gives {found:.4g}, and {use.checked:.4g} for what is ' \
               'in use'
    return ''
