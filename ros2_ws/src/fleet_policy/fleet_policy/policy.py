"""The class `Policy`, which a user writes, and functions that load it by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rog_tasks.errors import TaskError
from rog_tasks.failure import shortened, where
from rog_tasks.loading import load_object

from .contract import Contract, make_contract, read_contract
from .core.chunks import Actions
from .errors import PolicyError
from .observer import Batch, usual

PREFIX, PREFIX_COUNT = 'prefix', 'prefix_count'


class Policy(ABC):
    """Computes a chunk of actions from observations.

    You can derive your own class from this class. A class that has the methods ``model``,
    ``observe`` and ``actions`` is also enough. The constructor receives the options as
    keyword arguments. If it has a parameter ``contract``, it also receives the `Contract`.

    ``contract``: name of a contract file in the folder of the module, or the content of a
    contract. If it is None, a parameter of the node names the file.

    ``chunk``: if it is not 0, the policy inpaints. This means that it completes a chunk of this
    length, whose first actions are given. The batches of such a policy contain two more tensors.
    `prefix`, float32 (1, chunk, numbers of an action), contains planned actions, followed by
    zeros. The robot will execute these actions, from the time of the observation on, before the
    answer can arrive. `prefix_count`, int64 (1,), is the number of these actions.

    A policy may have a method ``loss(model, inputs, actions, there)``, by which
    `fleet_policy.imitation.Imitation` trains it: a scalar. ``model`` is like that of `model`,
    ``inputs`` are those of B observations, ``actions`` float32 (B, n, d) what was recorded, and
    ``there`` bool (B, n) says which actions are; the others are after the end of the episode.
    """

    contract: str | Mapping[str, Any] | None = None
    chunk: int = 0

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """Return the network, in eval mode, on the CPU; its inputs are the output of `observe`.

        The node moves it to its setting `device`, and moves inputs and output for each call. Robot
        and server share the computation, so the network must not keep state between calls.
        """

    @abstractmethod
    def observe(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the inputs of the model from a batch.

        :param batch: maps each entry of the contract to its tensor: an image is uint8 (1, 3,
            height, width), numbers are float32 (1, n).
        """

    @abstractmethod
    def actions(self, output: Any) -> torch.Tensor:
        """Return the chunk from the output of the model.

        The chunk is n actions of d numbers, as (n, d) or (1, n, d).
        Action 0 is for the time of the observation. Action k is for the time k ticks later.
        """


def load_contract(spec: str, path: str = '') -> Contract:
    """Return the contract in the file ``path``, or the contract of the policy's class.

    The attribute ``contract`` of the class is the name of a file in the folder of its module, or
    the content as a dict.

    :raises PolicyError: there is no contract.
    :raises ContractError: the contract is invalid.
    """
    if path:
        return read_contract(path)
    made = _load(spec)
    given = getattr(made, 'contract', None)
    if isinstance(given, Mapping):
        return make_contract(given)
    if not isinstance(given, str):
        raise PolicyError(f'contract must name a file: the policy {spec!r} has no contract of its '
                          'own')
    return read_contract(Path(inspect.getfile(made)).parent / given)


def _load(spec: str) -> Any:
    try:
        return load_object(spec, 'policy', fleet=False)
    except TaskError as error:
        raise PolicyError(str(error)) from None


def load_policy(spec: str, options: Mapping[str, Any], contract: Contract) -> Policy:
    """Make a policy; ``spec``: its class, as ``package.module:Class``.

    :raises PolicyError: the class does not exist, does not accept the options, or lacks a
        method.
    """
    made = _load(spec)
    given = dict(options)
    with named_failures('its constructor', made):
        try:
            if 'contract' in inspect.signature(made).parameters:
                given.setdefault('contract', contract)
            policy = made(**given)
        except (TypeError, ValueError) as error:
            raise PolicyError(f'policy {spec!r} cannot be made with the options {sorted(given)}: '
                              f'{error}') from error
    missing = [name for name in ('model', 'observe', 'actions')
               if not callable(getattr(policy, name, None))]
    if missing:
        raise PolicyError(f'policy {spec!r} must have the methods model, observe and actions; it '
                          f'has no {missing[0]}')
    return policy


@contextmanager
def named_failures(method: str, owner: Any, inputs: tuple[torch.Tensor, ...] = ()
                   ) -> Iterator[None]:
    """Raise `PolicyError` in place of an error of the user's code, with its place there.

    :param method: method of the policy that is called.
    :param owner: object whose code it is, the policy or its model.
    :param inputs: what the code gets by the contract.
    """
    try:
        yield
    except PolicyError:
        raise
    except Exception as error:   # the user's code may raise any exception
        given = ', '.join(f'{str(x.dtype).removeprefix("torch.")} {tuple(x.shape)}' for x in inputs)
        raise PolicyError(f'the policy raised in {method}: {shortened(error)}{where(owner, error)}'
                          + f'; the contract gives it {given}' * bool(given)) from error


def inputs_of(policy: Policy, batch: Batch, prefix: Actions | None, size: int
              ) -> tuple[torch.Tensor, ...]:
    """Return the inputs of the policy's model.

    :param prefix: array of planned actions, one action per row; None: no action is planned. It is
        used only if the policy has a ``chunk`` (see `Policy`).
    :param size: how many numbers an action has.
    """
    chunk = getattr(policy, 'chunk', 0)
    if chunk:
        rows = torch.zeros(1, chunk, size)
        count = 0 if prefix is None else min(len(prefix), chunk)
        if prefix is not None:
            rows[0, :count] = torch.from_numpy(np.asarray(prefix[:count], np.float32))
        batch = {**batch, PREFIX: rows, PREFIX_COUNT: torch.tensor([count])}
    found = policy.observe(batch)
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def chunk_of(policy: Policy, output: Any) -> Actions:
    """Return the policy's actions as an array, one action per row.

    If the output has an invalid shape, the array has this shape, too.

    :raises PolicyError: the policy does not return numbers.
    """
    found = policy.actions(output)
    try:
        array = found.detach().float().cpu().numpy() if isinstance(found, torch.Tensor) \
            else np.asarray(found, np.float32)
    except (TypeError, ValueError) as error:
        raise PolicyError('actions of the policy must return a tensor or an array of numbers, got '
                          f'{type(found).__name__}: {error}') from None
    return array[0] if array.ndim == 3 and len(array) == 1 else array


def example(policy: Policy, contract: Contract) -> tuple[torch.Tensor, ...]:
    """Return inputs of the model for usual pictures and numbers that are zero."""
    return inputs_of(policy, usual(contract), None, contract.size)
