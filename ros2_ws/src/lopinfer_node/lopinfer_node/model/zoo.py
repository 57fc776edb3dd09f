"""Finds a model by its name: of torchvision, of timm, or `package.module:factory`."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from fleet_env.errors import VersionError, WeightsError, did_you_mean
from fleet_env.vision import import_torchvision, imported
from fleet_env.weights import load_weights

from ..errors import ModelError

IMAGE = (1, 3, 224, 224)


def load(name: str, pretrained: bool = False, weights: str = '') -> torch.nn.Module:
    """Return the model in eval mode.

    ``weights``: what a fleet has learned, or a file of a state_dict, see
    `fleet_env.weights.load_weights`; it replaces the model's own weights unless it is empty.
    Raises ModelError if there is no such model, or if the weights do not fit.
    """
    torch.manual_seed(0)   # untrained weights are the same on robot and server
    made = _factory(name) if ':' in name else \
        _torchvision(name, pretrained) or _timm(name, pretrained)
    if made is None:
        raise ModelError(f'there is no model {name!r} in {_known(name)}name your own model as '
                         'package.module:factory')
    if weights:
        try:
            load_weights(made, weights)
        except VersionError as error:
            hint = '' if ':' in name or not isinstance(error, WeightsError) else \
                '; or name a function of yours that makes the model with these options, as ' \
                'package.module:factory'
            raise ModelError(f'{name}: {error}{hint}') from None
    return made.eval()


def _factory(name: str) -> torch.nn.Module:
    module, _, attribute = name.partition(':')
    if not all(part.isidentifier() for part in [*module.split('.'), attribute]):
        raise ModelError(f'a model of your own must be named package.module:factory, got {name!r}')
    try:
        made = getattr(imported(module), attribute)()
    except ModuleNotFoundError as error:
        if not error.name or not f'{module}.'.startswith(f'{error.name}.'):
            raise ModelError(f'{name}: {error}') from error
        raise ModelError(f'{name}: there is no module {error.name!r}; is it installed, or its '
                         'folder on PYTHONPATH?') from error
    except (ImportError, AttributeError) as error:
        raise ModelError(f'{name}: {error}') from error
    if not isinstance(made, torch.nn.Module):
        raise ModelError(f'{name} returns {type(made).__name__}, not a torch.nn.Module')
    return made


def _known(name: str) -> str:
    """Return in which packages there is no such model, and what the name may mean."""
    names: list[str] = []
    text = 'torchvision or timm; '
    for package, found in (('torchvision', import_torchvision()), ('timm', _timm_package())):
        if found is None:
            text += f'{package} is not installed here; '
        else:
            names += found.models.list_models()
    near = did_you_mean(name, names)
    return text + f'{near} Or ' * bool(near)


def _torchvision(name: str, pretrained: bool) -> torch.nn.Module | None:
    package = import_torchvision()
    if package is None or name not in package.models.list_models():
        return None
    builder = package.models.get_model_builder(name)
    options: dict[str, Any] = {'weights': 'DEFAULT' if pretrained else None}
    if 'weights_backbone' in inspect.signature(builder).parameters:
        # otherwise torchvision downloads weights of the backbone even for an untrained model
        options['weights_backbone'] = None
    return builder(**options)


def _timm(name: str, pretrained: bool) -> torch.nn.Module | None:
    timm = _timm_package()
    if timm is None or not timm.is_model(name):
        return None
    return timm.create_model(name, pretrained=pretrained)


def _timm_package() -> Any:
    """Return the package timm, or None."""
    import_torchvision()   # defines missing schemas, because timm imports torchvision
    try:
        return importlib.import_module('timm')
    except ModuleNotFoundError:
        return None
