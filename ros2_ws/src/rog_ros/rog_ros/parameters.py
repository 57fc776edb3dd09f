"""Node parameters: declared once, filled from the fleet file by `rog fleet up` and launch files.

The fleet file is the single source of a fleet's settings; a node's parameters are what it says,
flattened, and a default where there is no fleet file.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from fleet_env.fleet import FleetConfig, LinkConfig, RobotConfig, StragglerConfig
from fleet_env.fleet_file import link_trace
from fleet_env.power import PowerModel
from fleet_env.settings import check, construct, locate
from fleet_ros.parameters import Knob
from rog_core.errors import ConfigError
from rog_core.partition import GRANULARITIES

COMMON = {
    'task': Knob('rog_tasks.cruda:Cruda', 'Task to train, package.module:Class.'),
    'task_options': Knob('{}', 'Options of the task, a JSON object.'),
    'seed': Knob(0, 'Seed of model, data and batches.', 0, 2 ** 31 - 1),
    'granularity': Knob('row', 'Unit of transmission and staleness.',
                        choices=tuple(GRANULARITIES)),
    'codec': Knob('onebit', 'Code of the rows on the wire: raw, onebit, ternary, or ternary:P with '
                            'the share P of the elements that is sent.'),
    'momentum': Knob(0.9, 'Momentum, of the robots or of the server as the method has it.', 0.0,
                     1.0),
    'heartbeat_period': Knob(0.5, 'Time between status reports, s.', 0.05, 60.0),
    'heartbeat_limit': Knob(3.0, 'Silence after which a peer counts as gone, s.', 0.2, 3600.0),
    'chunk_bytes': Knob(14000, 'Most bytes of rows in one chunk, B.', 256, 65000),
    'chunk_time': Knob(0.004, 'Seconds of the link that a chunk takes: what a fade costs at most; '
                              'more makes fewer messages.', 0.0005, 1.0),
    'link_epoch': Knob(0.0, 'Wall-clock time at which the traces of emulated links begin, s.'),
    'importance_magnitude': Knob(1.0, 'Weight f1 of the gradient magnitude in a row\'s importance.',
                                 0.0, 1e6),
    'importance_age': Knob(1.0, 'Weight f2 of the age in a row\'s importance.', 0.0, 1e6),
}

WORKER = COMMON | {
    'rank': Knob(0, 'Rank of this robot, selects its share of the data.', 0, 65535),
    'world': Knob(1, 'Number of robots that share the data.', 1, 65536),
    'learning_rate': Knob(0.002, 'Learning rate.', 0.0, 1e6),
    'nesterov': Knob(True, 'Nesterov momentum; false: standard momentum.'),
    'weight_decay': Knob(0.0, 'Weight decay.', 0.0, 1e6),
    'batch_size': Knob(24, 'Samples in a batch.', 1, 2 ** 31 - 1),
    'evaluate_every': Knob(10, 'Iterations between evaluations; 0 for none but the last.',
                           0, 2 ** 31 - 1),
    'pace': Knob(0.0, 'Least duration of one gradient computation, s; emulates a slower robot.',
                 0.0, 3600.0),
    'capacity': Knob(1.0, 'Computing capacity, relative: a gradient takes pace / capacity.', 1e-6,
                     1e6),
    'stragglers': Knob('{}', 'How often this robot is late or away, as in a fleet file, a JSON '
                             'object.'),
    'device': Knob('cpu', 'Device that computes the gradients: cpu, cuda, cuda:N or auto.'),
    'link': Knob('{"emulate": false}', 'Link to the server as in a fleet file, a JSON object.'),
    'power': Knob('{}', 'Power per state, W, as in a fleet file, a JSON object.'),
    'server_namespace': Knob('/rog', 'Namespace of the parameter server.'),
}

SERVER = COMMON | {
    'sync': Knob('rsp:4', 'Synchronisation method, for example rsp:4; docs/methods.md describes '
                          'them all.'),
    'minutes': Knob(0.0, 'Duration of the run, min; 0 until it is stopped.', 0.0, 1e6),
    'robots': Knob('[]', 'Robots of the fleet with their links, a JSON list of objects with name, '
                         'link and capacity. Empty: anybody may join, over a real link.'),
    'out': Knob('', 'Directory for run.jsonl, summary.json and the checkpoint; empty for none.'),
    'checkpoint_every': Knob(10.0, 'Time between checkpoints, s; 0 for none.', 0.0, 1e6),
    'drain_limit': Knob(5.0, 'Longest time that the final model may take to reach a robot, s.',
                        0.01, 1e6),
    'resume': Knob(False, 'Go on from the checkpoint in the out directory, if there is one.'),
    'fleet': Knob('', 'Name of the fleet, for the records.'),
}


def _common(fleet: FleetConfig, epoch: float) -> dict[str, Any]:
    training = fleet.training
    return {'task': training.task, 'task_options': json.dumps(training.task_options),
            'seed': fleet.seed, 'granularity': training.granularity, 'codec': training.codec,
            'momentum': training.momentum, 'heartbeat_period': fleet.heartbeat.period,
            'heartbeat_limit': fleet.heartbeat.limit, 'chunk_bytes': fleet.network.chunk_bytes,
            'chunk_time': fleet.network.chunk_time, 'link_epoch': epoch}


def _json(settings: Any) -> str:
    return json.dumps(dataclasses.asdict(settings))


def worker_parameters(fleet: FleetConfig, robot: RobotConfig, epoch: float) -> dict[str, Any]:
    """Parameters of a robot's worker node."""
    training = fleet.training
    return _common(fleet, epoch) | {
        'rank': fleet.rank(robot.name), 'world': len(fleet.robots),
        'learning_rate': training.learning_rate, 'nesterov': training.nesterov,
        'weight_decay': training.weight_decay, 'batch_size': training.batch_size,
        'evaluate_every': training.evaluate_every, 'pace': robot.pace,
        'capacity': robot.capacity, 'stragglers': _json(robot.stragglers),
        'link': _json(robot.link), 'power': _json(robot.power)}


def server_parameters(fleet: FleetConfig, epoch: float, out: str) -> dict[str, Any]:
    """Parameters of the parameter-server node."""
    robots = [{'name': r.name, 'link': dataclasses.asdict(r.link), 'capacity': r.capacity}
              for r in fleet.robots]
    return _common(fleet, epoch) | {
        'sync': fleet.training.sync, 'minutes': fleet.minutes, 'robots': json.dumps(robots),
        'out': out, 'checkpoint_every': fleet.server.checkpoint_every,
        'drain_limit': fleet.server.drain_limit, 'fleet': fleet.name}


def _parse(name: str, text: str, kind: type) -> Any:
    """Return what the JSON of parameter ``name`` holds."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'parameter {name} is not JSON: {error}') from None
    if not isinstance(value, kind):
        words = 'an object, {...}' if kind is dict else 'a list, [...]'
        raise ConfigError(f'parameter {name} is {text}; it must be {words}')
    return value


def link_of(text: str) -> LinkConfig:
    """Link settings of a JSON object, those that are missing by default."""
    return _link('link', _parse('link', text, dict))


def _link(name: str, value: Any) -> LinkConfig:
    link: LinkConfig = construct(LinkConfig, locate(value, f'parameter {name}'), name)
    if link.emulate:
        link_trace(link)  # is there, and can be read
    return link


def power_of(text: str) -> PowerModel:
    """Power settings of a JSON object, those that are missing by default."""
    power: PowerModel = _settings('power', text, PowerModel)
    return power


def stragglers_of(text: str) -> StragglerConfig:
    """Straggler settings of a JSON object, those that are missing by default."""
    stragglers: StragglerConfig = _settings('stragglers', text, StragglerConfig)
    return stragglers


def _settings(name: str, text: str, cls: type) -> Any:
    return construct(cls, locate(_parse(name, text, dict), f'parameter {name}'), name)


def task_options_of(text: str) -> dict[str, Any]:
    """Options of the task."""
    options: dict[str, Any] = _parse('task_options', text, dict)
    return options


@dataclass(frozen=True)
class RobotEntry:
    """What the server knows of a robot before it joins."""

    link: LinkConfig
    capacity: float


def robots_of(text: str) -> dict[str, RobotEntry]:
    """Name -> link and capacity of the robots of the fleet; empty: anybody may join."""
    robots: dict[str, RobotEntry] = {}
    for index, entry in enumerate(_parse('robots', text, list)):
        at = f'robots[{index}]'
        if not (isinstance(entry, dict) and set(entry) <= {'name', 'link', 'capacity'}
                and 'name' in entry):
            raise ConfigError(f'parameter {at} is {json.dumps(entry)}; it must be an object of '
                              'name, link and capacity')
        name = robot_name(entry['name'])
        if name in robots:
            raise ConfigError(f"parameter robots: two robots are called '{name}'; give each its "
                              'own name')
        link = _link(f'{at}.link', entry.get('link', {'emulate': False}))
        robots[name] = RobotEntry(link, _capacity(f'{at}.capacity', entry.get('capacity', 1.0)))
    return robots


def _capacity(name: str, value: Any) -> float:
    rules = RobotConfig.__dataclass_fields__['capacity'].metadata
    capacity: float = check(locate(value, 'parameter robots'), name, float, rules)
    return capacity


def robot_name(name: Any) -> str:
    """Return ``name`` if a robot can be called so: it becomes part of topic names."""
    if not (isinstance(name, str) and re.fullmatch(r'[A-Za-z]\w*(/[A-Za-z]\w*)*', name, re.ASCII)
            and '__' not in name):
        raise ConfigError(f"'{name}' cannot be the name of a robot; it becomes its namespace: "
                          'letters, digits and single underscores, first a letter, for example '
                          'robot1')
    return name
