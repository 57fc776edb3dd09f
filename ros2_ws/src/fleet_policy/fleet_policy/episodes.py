"""Recorded episodes as data to learn from: observations, and the actions that followed them."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fleet_env.vision import import_torchvision
from rog_tasks.errors import DataError, some

from .actions import numbers_of
from .contract import Contract
from .core.chunks import Actions
from .errors import DataFault
from .messages import MessageError
from .observer import Observer
from .sources import played

METADATA = 'metadata.yaml'   # rosbag2 writes it when a recording ends
DATASET = 'meta/info.json'   # of a dataset of LeRobot
ROUNDING = 1e-6              # s; a message that has the time of a tick is of this tick
LONGEST = 1_000_000          # ticks of an episode

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Episode:
    """What a robot saw and did.

    ``actions``: float32 (ticks, d), in the policy's unit. ``seen``: the ticks with a whole
    observation, and its values, for `fleet_policy.observer.batch_of`. ``size``: their bytes.
    """

    name: str
    actions: Actions
    seen: list[tuple[int, dict[str, Any]]]
    size: int

    def chunk(self, tick: int, length: int) -> tuple[Actions, int]:
        """Return the actions (length, d) from a tick on, and how many of them there were.

        After the end of the episode its last action is repeated.
        """
        found = self.actions[tick:tick + length]
        return np.concatenate([found, np.repeat(found[-1:], length - len(found), 0)]), len(found)


def read_episode(contract: Contract, path: str | Path) -> Episode:
    """Read a rosbag2 recording of observations and actions of a contract, in any namespace.

    The action of a tick is the newest command half a tick later. An observation that the policy
    node would refuse, such as of a camera that has stopped, is left out.

    :raises DataFault: the recording is damaged, lacks a topic, does not fit the contract, or has no
        observation with an action.
    """
    entries: dict[tuple[str, str], Any] = {
        **{('observations', name): entry for name, entry in contract.observations.items()},
        **{('actions', name): entry for name, entry in contract.actions.items()}}
    observer = Observer(contract, 0.0, math.inf)
    commands: dict[str, Actions] = {}
    values: list[dict[str, Any] | None] = []
    actions: list[Actions | None] = []
    start, last = math.nan, -1

    def until(now: float) -> None:
        while len(values) / contract.rate < now - ROUNDING:
            is_whole = not observer.missing and not any(
                observer.flaws(len(values) / contract.rate).values())
            values.append(observer.newest() if is_whole else None)
        while (len(actions) + 0.5) / contract.rate < now - ROUNDING:
            actions.append(np.concatenate([commands[name] for name in contract.actions])
                           if len(commands) == len(contract.actions) else None)

    for seconds, key, message in played(entries, str(path)):
        start = seconds if math.isnan(start) else start
        if (seconds - start) * contract.rate > LONGEST:
            raise DataFault(f'{path} must last for at most {LONGEST} ticks, its messages do for '
                            f'{seconds - start:g} s')
        until(seconds - start)
        section, name = key
        if section == 'observations':
            observer.take(name, message, seconds - start)
            continue
        try:
            commands[name] = numbers_of(contract.actions[name], message)
        except MessageError as error:
            raise DataFault(f'actions.{name}: a message on {contract.actions[name].topic} {error}',
                            name) from None
        last = round((seconds - start) * contract.rate)
    until((last + 1) / contract.rate)
    first = next((tick for tick, action in enumerate(actions) if action is not None), len(actions))
    rows = [action for action in actions[first:last + 1] if action is not None]
    seen = [(tick, value) for tick, value in enumerate(values[first:last + 1]) if value is not None]
    if not seen or not rows:
        raise DataFault(f'{path} must have observations that are followed by actions; '
                        f'{observer.missing or "it has none"}')
    return Episode(Path(path).name, np.stack(rows), seen, _bytes(seen))


def read_dataset(contract: Contract, path: Path) -> list[Episode]:
    """Read the episodes of a dataset of LeRobot on this machine; nothing is downloaded.

    The observations of the contract must have the names of the dataset's features, and its actions
    are the feature ``action``; both are in the policy's unit.

    :raises DataFault: lerobot is not installed, or the dataset is damaged or does not fit the
        contract.
    """
    made = dataset_class(f'{path} is a dataset of LeRobot, which')
    try:
        dataset = made(f'not_downloaded/{path.name}', root=path)
        frames = [dataset[i] for i in range(len(dataset))]
    except Exception as error:   # a damaged dataset may raise an error of any library used there
        raise DataFault(f'{path} cannot be read as a dataset of LeRobot: {type(error).__name__}: '
                        f'{" ".join(str(error).split())[:200]}') from error
    if dataset.fps != contract.rate:
        raise DataFault(f'{path} must have the rate of the contract, {contract.rate:g} Hz, and has '
                        f'{dataset.fps} Hz')
    features = {name: (3,) if entry.is_image else (entry.count,)
                for name, entry in contract.observations.items()}
    for name, shape in {**features, 'action': (contract.size,)}.items():
        given = frames[0].get(name)
        if given is None or tuple(given.shape)[:1] != shape or given.ndim not in (1, 3):
            raise DataFault(f'{path} must have a feature {name!r} of {shape[0]} '
                            f'{"channels" if given is not None and given.ndim == 3 else "numbers"}'
                            f', it has {some(sorted(dataset.features))}')
    found: dict[int, list[Any]] = {}
    for frame in frames:
        found.setdefault(int(frame['episode_index']), []).append(frame)
    episodes = []
    for number, each in found.items():
        seen = [(tick, {name: _picture(frame[name]) if entry.is_image else frame[name].numpy()
                        for name, entry in contract.observations.items()})
                for tick, frame in enumerate(each)]
        episodes.append(Episode(f'{path.name}/{number}', np.stack([
            frame['action'].numpy() for frame in each]), seen, _bytes(seen)))
    return episodes


def dataset_class(what: str) -> Any:
    """Return LeRobot's class of datasets; raise `DataFault`, about ``what``, if there is none."""
    import_torchvision()
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise DataFault(f'{what} needs lerobot 0.4 or newer: {error}; pip install lerobot'
                        ) from None
    return LeRobotDataset


def _picture(pixels: Any) -> Any:
    """Return what has the fields of an Image, for pixels (3, height, width), 0 to 1."""
    data = (255 * pixels).round().byte().permute(1, 2, 0).contiguous().numpy()
    height, width, _ = data.shape
    return SimpleNamespace(height=height, width=width, encoding='rgb8', is_bigendian=0,
                           step=3 * width, data=data.reshape(-1))


def _bytes(seen: Sequence[tuple[int, dict[str, Any]]]) -> int:
    """Return the bytes of distinct values."""
    kept = {id(value): value for _, values in seen for value in values.values()}
    return sum(value.nbytes if isinstance(value, np.ndarray) else len(value.data)
               for value in kept.values())


class Episodes:
    """The episodes in a folder, which may become more.

    Each folder in it with a `METADATA` file is an episode; one that is still being recorded has
    none. Each with a `DATASET` file is several. The name of an episode decides whether it is held
    out, so it is so in each run.

    :param held_out: share of the episodes that are for evaluation only.
    :param memory: maximum bytes of all; then the earliest that were read are forgotten.
    :raises DataError: the folder is missing, or an episode cannot be read.
    """

    def __init__(self, contract: Contract, folder: Path, held_out: float, memory: int) -> None:
        self._contract, self.folder = contract, folder
        self._held_out, self._memory = held_out, memory
        self._known: set[str] = set()
        self._tried: set[Path] = set()
        self.training: list[Episode] = []
        self.held: list[Episode] = []
        for path in self._new():
            self._add(path)

    def look(self) -> None:
        """Read at most one folder that is new; say so in the log if it cannot be read, twice."""
        path = next(iter(self._new()), None)
        if path is None:
            return
        try:
            self._add(path)
        except DataError as error:
            if path in self._tried:
                log.warning('%s is left out: %s', path, error)
                return
            self._tried.add(path)    # it may be in the middle of being copied: once more, later
            self._known.discard(path.name)

    def _new(self) -> list[Path]:
        try:
            found = [path for path in sorted(self.folder.iterdir()) if path.name not in self._known
                     and any((path / name).is_file() for name in (METADATA, DATASET))]
        except OSError as error:
            raise DataError(f'{self.folder.absolute()} must be a folder of episodes: '
                            f'{error.strerror}') from None
        return found

    def _add(self, path: Path) -> None:
        self._known.add(path.name)
        try:
            found = read_dataset(self._contract, path) if (path / DATASET).is_file() else [
                read_episode(self._contract, path)]
        except DataFault as error:
            raise DataError(str(error)) from None
        for episode in found:
            number = int.from_bytes(hashlib.sha256(episode.name.encode()).digest()[:4], 'big')
            part = self.held if number < self._held_out * 2**32 else self.training
            part.append(episode)
            while sum(e.size for e in part) > self._memory and len(part) > 1:
                del part[0]

    def require(self) -> None:
        """Raise `DataError` if there is nothing to learn from."""
        if not self.training:
            raise DataError(f'{self.folder.absolute()} must have a recording to learn from, a '
                            f'folder with {METADATA} or {DATASET}; it has '
                            f'{some(sorted(self._known)) or "none"}, of which '
                            f'{len(self.held)} are held out')
