"""Reads and writes numbers in ROS messages; a field of a message is given by its name.

This file reads messages of rclpy and of rosbags in the same way. Messages to send are always of
rclpy's classes.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from fleet_env.settings.base import suggestion
from numpy.typing import NDArray

IMAGES = ('sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage')
TRAJECTORY = 'trajectory_msgs/msg/JointTrajectory'

_NUMBERS = ('float', 'double', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32',
            'uint64', 'octet', 'boolean')
_USUAL = {'std_msgs/msg/Float64MultiArray': 'data', 'std_msgs/msg/Float32MultiArray': 'data',
          'control_msgs/msg/MultiDOFCommand': 'values'}
# Maps a message type and a quantity to a field. JointJog's displacements are not used as
# positions: with the safety mode `hold` a robot repeats its last positions. If it
# repeated displacements, it would continue to move.
_BY_QUANTITY = {
    TRAJECTORY: {'position': 'positions', 'velocity': 'velocities', 'effort': 'effort'},
    'sensor_msgs/msg/JointState': {'position': 'position', 'velocity': 'velocity',
                                   'effort': 'effort'},
    'control_msgs/msg/JointJog': {'velocity': 'velocities'}}
_NAMES = ('name', 'joint_names', 'dof_names')


class MessageError(ValueError):
    """A type or a field does not exist, or a message does not have the required numbers."""


def message_class(kind: str) -> Any:
    """Return the class of a type such as ``std_msgs/msg/String``.

    Raises MessageError if the class does not exist.
    """
    package, _, name = kind.split('/')
    try:
        return getattr(importlib.import_module(f'{package}.msg'), name)
    except ImportError as error:
        raise MessageError(f'there is no package {package} here ({error}); install '
                           f'ros-<distro>-{package.replace("_", "-")}') from None
    except AttributeError:
        raise MessageError(f'{package} has no message {name}') from None


def usual_field(kind: str, quantity: str) -> str:
    """Return the field that usually holds the numbers of a message type; '' if there is none.

    ``quantity``: position, velocity or effort.
    """
    return _USUAL.get(kind) or _BY_QUANTITY.get(kind, {}).get(quantity, '')


def names_field(kind: Any) -> str:
    """Return the field of a message class that holds joint names; '' if there is none."""
    return next((name for name in _NAMES if name in kind.get_fields_and_field_types()), '')


def check_field(kind: Any, path: str, several: bool) -> None:
    """Raise MessageError if a message class does not have this field of numbers.

    :param several: whether the field must be a list of numbers; if not, it must be one number.
    """
    if _is_trajectory(kind):
        from trajectory_msgs.msg import JointTrajectoryPoint
        kind = JointTrajectoryPoint
    *above, last = path.split('.')
    for part in above:
        _known(kind, part)
        made = getattr(kind(), part)
        if not hasattr(made, 'get_fields_and_field_types'):
            raise MessageError(f'{part} of {kind.__name__} holds no fields')
        kind = type(made)
    _known(kind, last)
    text = kind.get_fields_and_field_types()[last]
    element = text.removeprefix('sequence<').partition(',')[0].rstrip('>').partition('[')[0]
    is_several = text.startswith('sequence<') or '[' in text
    if element not in _NUMBERS or is_several != several:
        raise MessageError(f'it must be {"a list of numbers" if several else "one number"}, but '
                           f'{last} of {kind.__name__} is {text}')


def _known(kind: Any, field: str) -> None:
    known = kind.get_fields_and_field_types()
    if field not in known:
        raise MessageError(f'{kind.__name__} has no field {field!r}; {suggestion(field, known)}')


def _is_trajectory(kind: Any) -> bool:
    return kind.__name__ == 'JointTrajectory'


def numbers(message: Any, field: str, fields: Sequence[str], size: int) -> NDArray[np.float32]:
    """Return the numbers (n,) of a message.

    :raises MessageError: the number of values is wrong, or a value is not finite.
    """
    values = np.array([_get(message, path) for path in fields], np.float32) if fields \
        else np.asarray(_get(message, field), np.float32)
    if values.shape != (size,):
        raise MessageError(f'must have {size} numbers, got {values.size}')
    if not np.isfinite(values).all():
        raise MessageError(f'must have finite numbers, got {values[~np.isfinite(values)][0]} at '
                           f'{int(np.flatnonzero(~np.isfinite(values))[0])}')
    return values


def joints_of(message: Any) -> list[str]:
    """Return the names of the joints in a message, in its order."""
    return list(getattr(message, next(name for name in _NAMES if hasattr(message, name))))


def by_name(message: Any, field: str, names: Sequence[str], holder: Any = None
            ) -> dict[str, np.float32]:
    """Return the numbers of those of the joints ``names`` that a message has.

    A message need not have all joints, and an empty list of numbers means that it has none.

    :param holder: what has ``field`` if the message itself has not: a point of a trajectory.
    :raises MessageError: names and numbers do not fit, a joint is there twice, or its number is
        not finite.
    """
    there = joints_of(message)
    values = np.asarray(_get(message if holder is None else holder, field), np.float32)
    wanted = [name for name in names if name in there] if len(values) else []
    if wanted and len(there) != len(values):
        raise MessageError(f'has {len(there)} names and {len(values)} numbers')
    found = {}
    for name in wanted:
        if there.count(name) > 1:
            raise MessageError(f'has the joint {name!r} {there.count(name)} times')
        found[name] = values[there.index(name)]
        if not np.isfinite(found[name]):
            raise MessageError(f'must have finite numbers, got {found[name]} for joint {name!r}')
    return found


def _get(message: Any, path: str) -> Any:
    for part in path.split('.'):
        message = getattr(message, part)
    return message


def write(message: Any, field: str, fields: Sequence[str], names: Sequence[str],
          values: NDArray[np.floating[Any]]) -> Any:
    """Put numbers (n,) and the names of joints into a message; return the message."""
    if names:
        setattr(message, names_field(type(message)), list(names))
    for path, value in zip(fields, values.tolist(), strict=False):
        _set(message, path, value)
    if not fields:
        _set(message, field, values.tolist())
    return message


def _set(message: Any, path: str, value: Any) -> None:
    *above, last = path.split('.')
    for part in above:
        message = getattr(message, part)
    current = getattr(message, last)
    setattr(message, last, int(round(value)) if type(current) is int else
            bool(value) if type(current) is bool else value)
