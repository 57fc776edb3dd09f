"""`ros2 run fleet_policy to_lerobot`: write recorded episodes as a dataset of LeRobot."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fleet_ros  # noqa: F401  # before rclpy: it checks the shared memory
import numpy as np
from fleet_env.command import command_parser, os_error_text
from fleet_env.errors import SettingError

from .contract import Contract, Numbers, read_contract
from .episodes import METADATA, Episode, dataset_class, read_episode
from .errors import DataFault
from .observer import batch_of

OBSERVATION = 'observation.'   # beginning of the names that a policy of LeRobot learns from


def write_dataset(contract: Contract, recordings: Sequence[Path], folder: Path, task: str
                  ) -> tuple[int, int]:
    """Write recordings as a dataset of LeRobot; return its numbers of episodes and of frames.

    `fleet_policy.episodes.read_dataset` and LeRobot read it. Images are stored without loss, at
    the size in the contract. A recording is several episodes if a tick lacks an observation.

    :param folder: it must not exist.
    :param task: what the robot does, in words.
    :raises DataFault: a recording cannot be read, the contract does not fit LeRobot, or lerobot is
        not installed. Then there is no folder.
    """
    folder = folder.absolute()
    if folder.exists():
        raise DataFault(f'{folder} must be a new folder')
    features = _features(contract)
    made = dataset_class('a dataset of LeRobot')
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix='.dataset-') as temporary:
        part = Path(temporary) / folder.name
        dataset = made.create(f'local/{folder.name}', round(contract.rate), features, root=part,
                              use_videos=False)
        for path in recordings:
            for frames in _whole(read_episode(contract, path)):
                for values, action in frames:
                    try:
                        frame = _frame(contract, values)
                    except DataFault as error:
                        raise DataFault(f'{path}: {error}') from None
                    dataset.add_frame({**frame, 'action': action, 'task': task})
                dataset.save_episode()
        dataset.finalize()
        shutil.rmtree(part / 'images', ignore_errors=True)   # LeRobot leaves empty folders
        found = dataset.meta.total_episodes, dataset.meta.total_frames
        os.replace(part, folder)
    return found


def recordings_in(folder: Path) -> list[Path]:
    """Return the recordings in a folder, in the order of their names, or the one that it is.

    :raises DataFault: it has none.
    """
    there = [folder] if (folder / METADATA).is_file() else sorted(
        path.parent for path in folder.glob(f'*/{METADATA}'))
    if not there:
        raise DataFault(f'{folder.absolute()} must have a recording, a folder with {METADATA}')
    return there


def _features(contract: Contract) -> dict[str, dict[str, Any]]:
    if contract.rate != round(contract.rate):
        raise DataFault('the rate of a dataset of LeRobot must be a whole number, that of the '
                        f'contract is {contract.rate:g} Hz')
    for name in contract.observations:
        if not name.startswith(OBSERVATION) or '/' in name:
            raise DataFault(f'LeRobot learns from observations whose names begin with {OBSERVATION}'
                            f'and have no /, such as observation.state; the contract has {name!r}')
    actions = contract.actions.values()
    named = [name for entry in actions for name in _names(entry)]
    return {**{name: {'dtype': 'image', 'shape': (entry.height, entry.width, 3),
                      'names': ['height', 'width', 'channels']} if entry.is_image
               else _numbers(entry.count, _names(entry))
               for name, entry in contract.observations.items()},
            'action': _numbers(contract.size, named)}


def _numbers(count: int, names: list[str]) -> dict[str, Any]:
    return {'dtype': 'float32', 'shape': (count,), 'names': names if len(names) == count else None}


def _names(entry: Numbers) -> list[str]:
    return list(entry.names or entry.fields)


def _whole(episode: Episode) -> Iterator[list[tuple[dict[str, Any], Any]]]:
    """Yield (observation, action) of each run of ticks that all have an observation."""
    frames: list[tuple[dict[str, Any], Any]] = []
    before = None
    for tick, values in episode.seen:
        if frames and tick - 1 != before:
            yield frames
            frames = []
        frames.append((values, episode.actions[tick]))
        before = tick
    yield frames


def _frame(contract: Contract, values: dict[str, Any]) -> dict[str, Any]:
    frame = {}
    for name, tensor in batch_of(contract, values).items():
        entry = contract.observations[name]
        if entry.is_image:
            pixels = tensor[0].permute(1, 2, 0).numpy()
            frame[name] = np.ascontiguousarray(
                pixels[..., ::-1] if entry.encoding == 'bgr8' else pixels)
        else:
            frame[name] = tensor[0].numpy()
    return frame


def main(args: Sequence[str] | None = None) -> int:
    """Run the command."""
    try:
        options = _parser().parse_args(args)
        episodes, frames = write_dataset(
            read_contract(options.contract), recordings_in(options.episodes.expanduser()),
            options.to.expanduser(), options.task)
    except (SettingError, DataFault, OSError) as error:
        said = os_error_text(error) if isinstance(error, OSError) else error
        print(f'to_lerobot: {said}', file=sys.stderr)
        return 2
    print(f'wrote {options.to}: {episodes} episodes, {frames} frames')
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser('to_lerobot', 'Write recordings of rosbag2, with the topics of a '
                            'contract, as a dataset of LeRobot.')
    parser.add_argument('contract', metavar='CONTRACT', help='file of the contract; its '
                        'observations have the names of LeRobot, such as observation.state')
    parser.add_argument('episodes', type=Path, metavar='EPISODES',
                        help='a recording, or a folder of recordings')
    parser.add_argument('--to', type=Path, required=True, metavar='FOLDER',
                        help='new folder for the dataset')
    parser.add_argument('--task', required=True, metavar='TEXT',
                        help='what the robot does, in words')
    return parser


if __name__ == '__main__':
    sys.exit(main())
