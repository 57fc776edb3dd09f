"""What a fleet file says, as frozen dataclasses.

The metadata of every field is the documentation of the file and what it is checked against:
``help`` and ``unit``, the bounds ``low`` and ``high`` (``above``: greater than), ``choices``,
``pattern`` with ``form`` (how a value looks), ``empty`` (whether an empty text is allowed).
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from fleet_env.power import PowerModel


def _(default: Any, help: str, unit: str = '', **checks: Any) -> Any:
    """Declare one setting; without a default it must be given."""
    metadata = {'help': help, 'unit': unit, **checks}
    if default is ...:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class TrainingConfig:
    """What is trained and how."""

    task: str = _('rog_tasks.cruda:Cruda', 'class of the task',
                  pattern=r'[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*',
                  form='package.module:Class')
    task_options: dict[str, Any] = field(default_factory=dict, metadata={
        'help': 'keyword arguments of the task', 'unit': ''})
    sync: str = _('rsp:4', 'synchronisation method and its threshold')
    codec: str = _('onebit', 'code of the rows on the air')
    granularity: str = _('row', 'unit of transmission',
                         choices=('model', 'layer', 'row', 'element'))
    importance_magnitude: float = _(1.0, "weight f1 of the gradient's magnitude in a row's "
                                         'importance', low=0.0)
    importance_age: float = _(1.0, "weight f2 of the age in a row's importance", low=0.0)
    learning_rate: float = _(0.005, 'learning rate of the averaged gradient', above=0.0)
    momentum: float = _(0.9, 'momentum', low=0.0, below=1.0)
    nesterov: bool = _(True, 'Nesterov momentum; false: standard (heavy-ball) momentum, as in the '
                             'paper of GSGM')
    weight_decay: float = _(0.0, 'weight decay', low=0.0)
    batch_size: int = _(24, 'samples in a batch of one robot', low=1)
    evaluate_every: int = _(10, 'iterations between evaluations; 0 for none', low=0)
    pace: float = _(0.0, 'least duration of one gradient computation, which emulates a slower '
                         'robot; 0 for none', 's', low=0.0)
    codec_pace: float = _(0.0, 'duration of compressing and decompressing in one iteration, which '
                               'virtual time adds to pace', 's', low=0.0)
    traffic: str = _('', 'published model whose bytes and rows the model trained here stands for '
                         'on the air (virtual time only); empty for its own', empty=True,
                     pattern=r'([a-z0-9][a-z0-9._-]*)?', form='convmlp-m, or empty')


@dataclass(frozen=True)
class ChannelConfig:
    """The radio channel of the fleet (virtual time only; real radios share what they share)."""

    shared: bool = _(True, 'the robots share the air time of one channel; false: each robot has a '
                           'channel of its own')


@dataclass(frozen=True)
class LinkConfig:
    """The link between a robot and the server; the sender follows its trace in both directions."""

    trace: str = _('outdoor', 'a built-in trace (indoor, outdoor, outdoor_fades, edge, steady), or '
                              'a file of "seconds Mbit/s" lines, relative to the fleet file')
    scale: float = _(1.0, 'factor on the rate, to fit the size of the model', above=0.0)
    emulate: bool = _(True, 'let the sender follow the trace; false on real robots')
    offset: float = _(0.0, 'where in the trace a robot starts. For the fleet: from one robot to '
                           'the next. For a robot: from the start of the trace', 's', low=0.0)
    latency: float = _(0.0, 'delay added to every packet', 's', low=0.0, high=10.0)


@dataclass(frozen=True)
class HeartbeatConfig:
    """How it is noticed that a robot, or the server, has gone."""

    period: float = _(0.5, 'time between heartbeats', 's', above=0.0)
    limit: float = _(3.0, 'silence after which a peer counts as gone', 's', above=0.0)


@dataclass(frozen=True)
class NetworkConfig:
    """DDS and the packets on it."""

    domain_id: int = _(0, 'DDS domain', low=0, high=232)
    interface: str = _('lo', 'network interface of the machine')
    chunk_bytes: int = _(14000, 'most bytes in one chunk of rows', 'B', low=256, high=65000)
    chunk_time: float = _(0.004, 'time of the link that a chunk takes: what a fade costs at most; '
                                 'more makes fewer messages', 's', low=0.0005, high=1.0)


@dataclass(frozen=True)
class ServerConfig:
    """The parameter server."""

    checkpoint_every: float = _(10.0, 'time between checkpoints; 0 for none', 's', low=0.0)
    drain_limit: float = _(5.0, 'longest time that the exact final model may take to reach a robot '
                                'at the end of a run', 's', above=0.0)


@dataclass(frozen=True)
class StragglerConfig:
    """How often a robot is late or away; drawn once for each gradient."""

    probability: float = _(0.0, 'probability that a gradient takes longer', low=0.0, high=1.0)
    time: float = _(0.0, 'how much longer', 's', low=0.0)
    drop_probability: float = _(0.0, 'probability that the robot drops out before a gradient',
                                low=0.0, high=1.0)
    drop_time: float = _(0.0, 'how long it then neither computes nor is heard', 's', low=0.0)


@dataclass(frozen=True)
class RobotConfig:
    """One robot, with everything that the fleet sets for all already filled in."""

    name: str = _(..., "the robot's name and namespace", pattern=r'[a-z][a-z0-9_]*',
                  form='lower case, digits and underscores (REP-144)')
    link: LinkConfig = LinkConfig()
    pace: float = _(0.0, 'least duration of one gradient computation; default training.pace', 's',
                    low=0.0)
    power: PowerModel = PowerModel()
    codec_pace: float = _(0.0, 'duration of compressing and decompressing in one iteration; '
                               'default training.codec_pace', 's', low=0.0)
    stragglers: StragglerConfig = StragglerConfig()
    capacity: float = _(1.0, 'computing capacity, relative: a gradient takes pace / capacity, and '
                             'gradient coding deals out data in proportion', above=0.0)


@dataclass(frozen=True)
class FleetConfig:
    """A fleet file; the order of the robots is their rank."""

    name: str = _(..., 'name of the fleet', pattern=r'[A-Za-z0-9][\w.-]*',
                  form='letters, digits, dot, dash, underscore')
    robots: tuple[RobotConfig, ...] = _(..., 'the robots')
    description: str = _('', 'what this fleet is for', empty=True)
    seed: int = _(0, 'seed of everything random', low=0, high=2**31 - 1)
    minutes: float = _(1.5, 'duration of the training', 'min', above=0.0)
    training: TrainingConfig = TrainingConfig()
    link: LinkConfig = LinkConfig()
    channel: ChannelConfig = ChannelConfig()
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    network: NetworkConfig = NetworkConfig()
    server: ServerConfig = ServerConfig()
    power: PowerModel = PowerModel()
    stragglers: StragglerConfig = StragglerConfig()
    file: str = field(default='', compare=False, repr=False)
    """Path of the file that it was read from; not a setting."""

    def robot(self, name: str) -> RobotConfig:
        """Return the robot called ``name``.

        :raises KeyError: names the robots that there are.
        """
        for robot in self.robots:
            if robot.name == name:
                return robot
        raise KeyError(f'no robot {name!r}; there are {", ".join(r.name for r in self.robots)}')

    @property
    def capacities(self) -> dict[str, float]:
        """Computing capacity of every robot, in order of rank."""
        return {robot.name: robot.capacity for robot in self.robots}

    def rank(self, name: str) -> int:
        """Position of the robot called ``name``, from 0."""
        return self.robots.index(self.robot(name))

    def robot_defaults(self, index: int, name: str) -> RobotConfig:
        """Return robot ``index``, called ``name``, as it is where its entry says nothing else."""
        link = dataclasses.replace(self.link, offset=self.link.offset * index)
        return RobotConfig(name, link, self.training.pace, self.power, self.training.codec_pace,
                           self.stragglers)

    def to_dict(self) -> dict[str, Any]:
        """Return what a fleet file holds, every setting written out.

        A robot's entry holds only what differs from the fleet's, so that an override of the
        fleet's setting reaches every robot that has none of its own.
        """
        data = dataclasses.asdict(self)
        del data['file']
        data['robots'] = []
        for index, robot in enumerate(self.robots):
            theirs = dataclasses.asdict(robot)
            ours = dataclasses.asdict(self.robot_defaults(index, robot.name))
            entry: dict[str, Any] = {'name': robot.name}
            for key, value in theirs.items():
                if isinstance(value, dict):
                    value = {k: v for k, v in value.items() if v != ours[key][k]}
                    if value:
                        entry[key] = value
                elif value != ours[key]:
                    entry[key] = value
            data['robots'].append(entry)
        return data
