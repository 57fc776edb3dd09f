"""A task for a fleet: a policy's model learns the actions of recorded episodes."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fleet_env.errors import VersionError
from fleet_env.weights import load_weights
from rog_tasks.errors import DataError, TaskError
from rog_tasks.task import Task
from torch import Tensor, nn

from .episodes import Episode, Episodes
from .errors import ContractError, DataFault, PolicyError
from .lora import adapt
from .observer import batch_of
from .policy import Policy, example, inputs_of, load_contract, load_policy

LOSSES = {'l1': nn.functional.l1_loss, 'mse': nn.functional.mse_loss}
LOOK = 50            # batches between two looks for new episodes
EVALUATED = 64       # observations in a batch of an evaluation

# The inputs of the model, the actions (B, n, d), and which of them were recorded (B, n, 1).
Batch = tuple[tuple[Tensor, ...], Tensor, Tensor]


class Imitation(Task):
    """Training of a policy's model on what was recorded with the policy's contract.

    The policy, its options and its contract are those of the policy's node, so the node can follow
    what the fleet learns. The recordings are folders of rosbag2, with the topics of the contract in
    the robot's namespace or in none.

    :param policy, policy_options, contract: see `docs/howto/policy.md`.
    :param episodes: folder of episodes; ``{rank}`` stands for the robot's rank. Only robots
        open it. Episodes that are added while a robot trains are learned, too.
    :param test: folder of episodes on every machine, by which the model is measured. If it is '', a
        robot measures by the share ``held_out`` of its own episodes, and the server cannot measure.
    :param start: weights to start from: a run, one of its versions, or a file of a state_dict.
        Only the server needs it if ``train`` is ``all``, otherwise every machine.
    :param train: ``all``; ``head``, the last layer; ``lora``, low-rank adapters of the linear
        layers; or patterns of names of parameters, such as ``['decoder.*']``. The other parameters
        stay as they are and do not travel.
    :param lora_rank: rank of the adapters.
    :param loss: ``l1`` or ``mse``, of the actions in the policy's unit. If it is '', the loss of
        the policy, such as LeRobot's; ``l1`` for a policy that has none.
    :param tolerance: an action is right if it is at most so far from the recorded one, in the
        policy's unit; or a mapping of the contract's actions to tolerances.
    :param test_limit: maximum number of observations that an evaluation uses.
    :param memory: MiB that the episodes of a robot may take; the newest stay.
    :raises TaskError: an option is invalid; the message names it.
    """

    def __init__(self, policy: str, episodes: str, contract: str = '',
                 policy_options: Mapping[str, Any] | None = None, test: str = '',
                 held_out: float = 0.1, start: str = '', train: str | Sequence[str] = 'all',
                 lora_rank: int = 8, loss: str = '',
                 tolerance: float | Mapping[str, float] = 0.05, test_limit: int = 500,
                 memory: int = 1024, seed: int = 0):
        if loss and loss not in LOSSES:
            raise TaskError(f"loss must be one of {', '.join(LOSSES)}, or '', got {loss!r}")
        if not 0 <= held_out < 1:
            raise TaskError(f'held_out must be at least 0 and less than 1, got {held_out}')
        if test_limit < 1 or memory < 1 or lora_rank < 1:
            raise TaskError('test_limit, memory and lora_rank must be at least 1')
        self._spec, self._options = policy, dict(policy_options or {})
        self._episodes, self._held_out, self._memory = episodes, held_out, memory << 20
        self._limit, self._seed = test_limit, seed
        self._start, self._train, self._rank = start, train, lora_rank
        try:
            self._contract = load_contract(policy, contract)
        except (ContractError, PolicyError) as error:
            raise TaskError(str(error)) from None
        self._tolerance = self._tolerances(tolerance)
        with self._dice():
            self._policy = self._load()
        self._own_loss = None if loss else getattr(self._policy, 'loss', None)
        self._loss = LOSSES[loss or 'l1']
        self._length = self._chunk_length()
        self._choose(self._new())   # refuses patterns that fit nothing
        self._test = Episodes(self._contract, Path(test).expanduser(), 0.0, self._memory).training \
            if test else []
        if test and not self._test:
            raise DataError(f'test: {Path(test).absolute()} must have an episode')

    def model(self) -> nn.Module:
        """Return a new model of the policy; do not change the global random state."""
        made = self._new()
        self._choose(made)
        if self._start and not self._is_all_trained(made):
            self._begin(made)   # robots get no frozen parameters from the server
        return made

    def pretrain(self, model: nn.Module) -> None:
        """Fill a new model, in place, with the weights that the option ``start`` names."""
        if self._start and self._is_all_trained(model):
            self._begin(model)

    def batches(self, rank: int, world: int) -> Iterator[Batch]:
        """Return batches of observations that are drawn at random from the robot's episodes.

        :raises DataError: there are no episodes, or one cannot be read.
        """
        if world > 1 and '{rank}' not in self._episodes:
            raise TaskError(f'episodes must have {{rank}} in the path, because each of {world} '
                            f'robots learns from its own, got {self._episodes}')
        folder = Path(self._episodes.replace('{rank}', str(rank))).expanduser()
        episodes = Episodes(self._contract, folder, self._held_out, self._memory)
        episodes.require()
        if not self._test:
            self._test = episodes.held
        return self._drawn(episodes, np.random.default_rng([self._seed % 2**63, rank]))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of the actions that were recorded."""
        inputs, actions, there = batch
        if self._own_loss is not None:
            device = next(model.parameters()).device
            return self._own_loss(model, [x.to(device) for x in inputs], actions.to(device),
                                  there[..., 0].to(device, torch.bool))
        found = self._actions(model, inputs)
        actions, there = actions.to(found.device), there.to(found.device)
        return (self._loss(found, actions, reduction='none') * there).sum() \
            / (there.sum() * actions.shape[2])

    def evaluate(self, model: nn.Module) -> float:
        """Return the share of the recorded numbers of actions that the model gives, to tolerance.

        It is NaN without episodes to measure by.
        """
        steps = [(episode, at) for episode in self._test for at in range(len(episode.seen))]
        chosen = np.linspace(0, len(steps) - 1, min(self._limit, len(steps))).round().astype(int)
        right = total = 0.0
        for begin in range(0, len(chosen), EVALUATED):
            inputs, actions, there = self._batch([
                steps[i] for i in chosen[begin:begin + EVALUATED].tolist()])
            off = (self._actions(model, inputs).cpu() - actions).abs()
            right += float(((off <= self._tolerance) * there).sum())
            total += float(there.sum()) * actions.shape[2]
        return right / total if total else math.nan

    def _drawn(self, episodes: Episodes, dice: np.random.Generator) -> Iterator[Batch]:
        while True:
            for _ in range(LOOK):
                sizes = np.cumsum([len(episode.seen) for episode in episodes.training])
                steps = []
                for number in dice.integers(sizes[-1], size=self.batch_size).tolist():
                    which = int(np.searchsorted(sizes, number, 'right'))
                    episode = episodes.training[which]
                    steps.append((episode, number - int(sizes[which]) + len(episode.seen)))
                yield self._batch(steps)
            episodes.look()

    def _batch(self, steps: Sequence[tuple[Episode, int]]) -> Batch:
        inputs, actions, there = [], [], torch.zeros(len(steps), self._length, 1)
        for row, (episode, at) in enumerate(steps):
            tick, values = episode.seen[at]
            try:
                seen = batch_of(self._contract, values)
            except DataFault as error:
                raise DataError(f'{episode.name}: {error}') from None
            inputs.append(inputs_of(self._policy, seen, None, self._contract.size))
            chunk, count = episode.chunk(tick, self._length)
            actions.append(torch.from_numpy(chunk))
            there[row, :count] = 1
        return tuple(map(torch.cat, zip(*inputs, strict=True))), torch.stack(actions), there

    def _actions(self, model: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
        device = next(model.parameters()).device
        return self._policy.actions(model(*(x.to(device, non_blocking=True) for x in inputs)))

    # -- the policy and its model ------------------------------------------------------------------

    def _load(self) -> Policy:
        try:
            policy = load_policy(self._spec, self._options, self._contract)
        except PolicyError as error:
            raise TaskError(str(error)) from None
        if getattr(policy, 'chunk', 0):
            raise TaskError(f'policy must not inpaint, and {self._spec} has a chunk, because no '
                            'given actions are trained')
        return policy

    @contextmanager
    def _dice(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            yield

    def _new(self) -> nn.Module:
        with self._dice():
            return copy.deepcopy(self._policy.model())   # it may be the same each time

    def _chunk_length(self) -> int:
        model = self._new().eval().requires_grad_(True)
        found = self._actions(model, example(self._policy, self._contract))
        if self._own_loss is None and not found.requires_grad:
            raise TaskError(f'policy must give actions that can be differentiated, or have a loss '
                            f'of its own (and the option loss be \'\'); {self._spec} computes '
                            'without gradients in its model or its method actions')
        shape = tuple(found.shape)
        if len(shape) != 3 or shape[0] != 1 or shape[2] != self._contract.size:
            raise TaskError(f'policy must give actions (1, n, {self._contract.size}) for one '
                            f'observation, and (B, n, {self._contract.size}) for B, got {shape}')
        return shape[1]

    def _tolerances(self, given: float | Mapping[str, float]) -> Tensor:
        names = list(self._contract.actions)
        if not isinstance(given, Mapping):
            given = dict.fromkeys(names, given)
        if set(given) != set(names) or not all(value >= 0 for value in given.values()):
            raise TaskError(f'tolerance must be a number of at least 0, or one for each of '
                            f'{", ".join(names)}, got {dict(given)}')
        return torch.tensor([given[name] for name, entry in self._contract.actions.items()
                             for _ in range(entry.count)])

    def _choose(self, model: nn.Module) -> None:
        """Freeze all parameters but those that are trained."""
        if self._train == 'all':
            return
        trained = self._adapters(model) if self._train == 'lora' else self._fitting(
            [name for name, _ in model.named_parameters()])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trained)

    def _adapters(self, model: nn.Module) -> set[str]:
        with self._dice():
            if not (made := adapt(model, self._rank)):
                raise TaskError('train: lora needs a linear layer in the model of the policy')
        return made

    def _fitting(self, names: list[str]) -> set[str]:
        patterns = [self._train] if isinstance(self._train, str) else list(self._train)
        if self._train == 'head':
            patterns = [f'{names[-1].rpartition(".")[0]}.*'] if '.' in names[-1] else [names[-1]]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise TaskError(f'train: {pattern!r} must fit the name of a parameter; they are '
                                f'{", ".join(names[:20])}{", ..." if len(names) > 20 else ""}')
        return {name for name in names if any(fnmatchcase(name, p) for p in patterns)}

    @staticmethod
    def _is_all_trained(model: nn.Module) -> bool:
        return all(parameter.requires_grad for parameter in model.parameters())

    def _begin(self, model: nn.Module) -> None:
        try:
            load_weights(model, self._start)
        except VersionError as error:
            raise TaskError(f'start: {error}') from None
