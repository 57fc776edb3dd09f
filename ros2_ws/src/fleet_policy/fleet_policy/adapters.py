"""Policies made from trained models: from any torch module, or from a policy of LeRobot."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fleet_env.errors import VersionError
from fleet_env.versions import MODEL_FILE
from fleet_env.vision import import_torchvision
from fleet_env.weights import load_weights
from rog_tasks.errors import TaskError
from rog_tasks.loading import load_object
from safetensors import SafetensorError
from safetensors.torch import save_model

from .contract import Contract
from .errors import PolicyError
from .observer import Batch
from .policy import Policy


class TorchPolicy(Policy):
    """A policy made from any torch module.

    The module is called with one argument for each observation, in the contract's order.

    An image is float32 (1, 3, height, width) with values from 0 to 1, and a list of n
    numbers is float32 (1, n). The module returns n actions of d numbers, float32 of shape
    (1, n, d) or (n, d). If the module returns a tuple, the first element contains the actions.
    d is the sum of the sizes of the contract's actions.

    :param module: the module; or ``package.module:name``, the name of a module or of a
        function that makes a module.
    :param weights: a run, one of its versions, or a file of a state_dict, with the parameters
        and buffers. If it is empty, the module keeps its own parameters and buffers.
    """

    def __init__(self, module: torch.nn.Module | str, contract: Contract, weights: str = ''
                 ) -> None:
        try:
            made = load_object(module, 'module', fleet=False) if isinstance(module, str) else module
        except TaskError as error:
            raise PolicyError(str(error)) from None
        made = made if isinstance(made, torch.nn.Module) else made()
        if not isinstance(made, torch.nn.Module):
            raise PolicyError(f'module must be a torch.nn.Module, got {type(made).__name__}')
        if weights:
            _load(weights, made, Scaled(made))
        self._module = made.eval()
        self._names = list(contract.observations)
        _check_arguments(made, self._names)

    def model(self) -> torch.nn.Module:
        """Return a module that scales images and then calls the user's module."""
        return Scaled(self._module)

    def observe(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the observations in the contract's order; `Scaled` converts uint8 images later."""
        return tuple(batch[name] for name in self._names)

    def actions(self, output: Any) -> torch.Tensor:
        """Return the module's output; if there are several outputs, return the first one."""
        return output[0] if isinstance(output, (tuple, list)) else output


def _load(weights: str, module: torch.nn.Module, model: torch.nn.Module) -> None:
    """Fill a module with weights of its own, or with those of the model that it is in."""
    try:
        load_weights(module, weights)
    except VersionError as error:
        try:
            load_weights(model, weights)   # what a fleet has trained by `Imitation`
        except VersionError:
            raise PolicyError(f'weights must be those of the module: {error}') from None


def _check_arguments(module: torch.nn.Module, names: list[str]) -> None:
    """Raise `PolicyError` unless ``forward`` accepts one argument for each observation."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):   # compiled code may have no signature
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise PolicyError(
            f'forward of {type(module).__name__} must take one argument for each observation of '
            f'the contract, in this order: ({", ".join(names)}); it takes {signature}') from None


class Scaled(torch.nn.Module):
    """Scales uint8 inputs to [0, 1], then calls a module.

    The scaling is a part of the model that the server can compute, so images can cross the link as
    uint8.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the output of the module for the scaled inputs."""
        return self.module(*(x.float() / 255 if x.dtype == torch.uint8 else x for x in inputs))


class LeRobotPolicy(Policy):
    """A policy of LeRobot, loaded from a folder on this machine; nothing is downloaded.

    The observations of the contract must have the names of the policy's input features, such as
    `observation.images.top` and `observation.state`. The policy's processors normalise observations
    and unnormalise actions.

    :param folder: folder with config.json, the weights and, since LeRobot 0.4, the processors.
    :param weights: a run, one of its versions, or a file of a state_dict. If it is empty, the
        weights are those in the folder.
    """

    def __init__(self, folder: str, contract: Contract, weights: str = '') -> None:
        self._folder = path = Path(folder).expanduser()
        if not (path / 'config.json').is_file():
            raise PolicyError(f'folder must hold a policy saved by LeRobot, but {path} has no '
                              'config.json')
        import_torchvision()
        try:
            from lerobot.configs.policies import PreTrainedConfig
            from lerobot.policies.factory import get_policy_class, make_pre_post_processors
            from lerobot.processor import DeviceProcessorStep
        except ImportError as error:
            raise PolicyError(f'a policy of LeRobot needs lerobot 0.4 or newer: {error}; pip '
                              'install lerobot') from None
        config = PreTrainedConfig.from_pretrained(path, local_files_only=True)
        if (steps := getattr(config, 'n_obs_steps', 1)) > 1:
            raise PolicyError(f'a policy of LeRobot must act on one observation, such as ACT; '
                              f'{config.type} in {path} needs the last {steps} (n_obs_steps)')
        config.device = 'cpu'
        policy = get_policy_class(config.type).from_pretrained(
            path, config=config, local_files_only=True)
        self._policy = policy.eval()
        self._names = list(config.input_features)
        missing = sorted(set(self._names) - set(contract.observations))
        if missing:
            raise PolicyError(f'the contract must have an observation {missing[0]!r}, which the '
                              f'policy needs; it has {", ".join(contract.observations)}')
        self._before, self._after = make_pre_post_processors(
            config, pretrained_path=str(path),
            preprocessor_overrides={'device_processor': {'device': 'cpu'}})
        # the node decides where the network computes; its inputs are there
        self._before.steps = [step for step in self._before.steps
                              if not isinstance(step, DeviceProcessorStep)]
        if weights:
            _load(weights, self._policy, self.model())

    def model(self) -> torch.nn.Module:
        """Return a module that processes the input features and calls the network."""
        return _Chunks(self._policy, self._names, self._before)

    def observe(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the input features in the order of the policy's configuration, images as uint8."""
        return tuple(batch[name] for name in self._names)

    def actions(self, output: Any) -> torch.Tensor:
        """Return the actions in the units of the policy's training data."""
        return self._after(output)

    def loss(self, model: torch.nn.Module, inputs: Sequence[torch.Tensor], actions: torch.Tensor,
             there: torch.Tensor) -> torch.Tensor:
        """Return the loss by which LeRobot trains the policy, see `Policy`."""
        from lerobot.processor import NormalizerProcessorStep
        from lerobot.processor.converters import create_transition, transition_to_policy_action
        device = actions.device
        for step in self._before.steps:
            if isinstance(step, NormalizerProcessorStep):   # its statistics are on the CPU
                actions = transition_to_policy_action(step(create_transition(
                    action=actions.cpu()))).to(device)
        model.train()
        assert isinstance(model, _Chunks)
        found = model.policy({**model.ready(inputs), 'action': actions, 'action_is_pad': ~there})
        return found[0] if isinstance(found, tuple) else found

    def save(self, folder: str) -> None:
        """Write the policy, with its present weights, to a new folder as LeRobot saves it.

        :raises PolicyError: the folder exists, or cannot be written.
        """
        try:
            shutil.copytree(self._folder, Path(folder).expanduser())
            save_model(self._policy, str(Path(folder).expanduser() / MODEL_FILE))
        except (OSError, SafetensorError) as error:
            raise PolicyError(f'folder must be a new folder, got {folder}: {error}') from None


class _Chunks(torch.nn.Module):
    """A policy of LeRobot and its processor, which is a part of the model as in `Scaled`."""

    def __init__(self, policy: Any, names: list[str], before: Any) -> None:
        super().__init__()
        self.policy, self._names, self._before = policy, names, before

    def ready(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what the network takes for inputs as `LeRobotPolicy.observe` returns them."""
        found = self._before({name: x.float() / 255 if x.dtype == torch.uint8 else x
                              for name, x in zip(self._names, inputs, strict=True)})
        return {name: found[name] for name in self._names}

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.policy.predict_action_chunk(self.ready(inputs))
