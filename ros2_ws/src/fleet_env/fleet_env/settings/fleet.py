"""The schema of all settings of a fleet: fleet files, node parameters, launch arguments.

A new setting is one line here; docs/reference/settings.md is generated from these lines.
"""

from typing import Any, Literal

from pydantic import model_validator

from fleet_env.settings.base import Settings, changed
from fleet_env.settings.base import setting as _
from fleet_env.settings.power_model import PowerModel

DEVICE: dict[str, Any] = {'pattern': r'^(cpu|auto|cuda(:\d+)?)$',
                          'form': 'cpu, cuda, cuda:N, or auto (cuda where there is one)'}
# A robot's name becomes its namespace; ROS 2 limits a whole topic name to 247 characters.
ROBOT: dict[str, Any] = {'pattern': '^[A-Za-z](_?[A-Za-z0-9])*_?$', 'max_length': 64,
                         'form': 'robot1 (letters a to z, digits and single underscores, first a '
                                 'letter)'}


class TrainingConfig(Settings):
    """The settings of the training: what is trained and how."""

    CONSTANTS = {'importance_magnitude': (1.0, 'is always 1'),
                 'importance_age': (1.0, 'is always 1')}

    task: str = _('rog_tasks.cruda:Cruda', 'class of the task',
                  pattern=r'^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$',
                  form='package.module:Class')
    task_options: dict[str, Any] = _({}, 'keyword arguments of the task; as a parameter or an '
                                         'argument, a JSON object')
    sync: str = _('rsp:20+pipeline+sparse', 'synchronisation method with its arguments and '
                  'options; docs/howto/method.md describes them all', live=True)
    codec: str = _('onebit', 'encoding of the rows, or a class of your own; docs/howto/codec.md '
                             'describes them all')
    granularity: Literal['model', 'layer', 'row', 'element'] = _(
        'row', 'unit of transmission and staleness')
    buffers: Literal['average', 'local'] = _(
        'average', 'buffers, such as the statistics of batch normalisation. average: all robots '
                   'have the mean over the robots; local: each robot keeps its own, and the server '
                   'evaluates with their mean')
    device: str = _('cpu', "device that computes the gradients and holds the robot's rows",
                    **DEVICE)
    learning_rate: float = _(0.005, 'learning rate of the averaged gradient', gt=0.0,
                             le=1e6)
    momentum: float = _(0.9, 'momentum; the method decides whether robots or server apply it',
                        ge=0.0, lt=1.0)
    nesterov: bool = _(True, 'Nesterov momentum; false: standard (heavy-ball) momentum, as in the '
                             'paper of GSGM')
    weight_decay: float = _(0.0, 'weight decay', ge=0.0)
    batch_size: int = _(24, 'samples in a batch of one robot', ge=1)
    evaluate_every: int = _(10, 'iterations between evaluations; 0: only the final one', ge=0)
    pace: float = _(0.0, 'least duration of one gradient computation, to emulate a slower robot; '
                         '0: no limit, and in virtual time the duration on this machine', 's',
                    ge=0.0)
    codec_pace: float = _(0.0, 'duration of compressing and decompressing in one iteration, which '
                               'virtual time adds to pace', 's', ge=0.0)
    traffic: str = _('', 'published model whose bytes and rows count on the air instead of the '
                         "trained model's (virtual time only); empty: the trained model's",
                     empty=True,
                     pattern=r'^([a-z0-9][a-z0-9._-]*)?$', form='convmlp-m, or empty')
    checksums: bool = _(False, 'robot and server log a checksum of the rows after every pull; both '
                               'must agree, which rog chaos checks')


class ChannelConfig(Settings):
    """The radio channel of the fleet, in virtual time only."""

    shared: bool = _(True, 'the robots share the air time of one channel; false: each robot has a '
                           'channel of its own')
    header: int = _(0, 'bytes that every datagram adds to its content; if not 0, acknowledgements '
                       'and the ends of transfers use air time, too. DDS adds 98: Ethernet, IP, '
                       'UDP and RTPS', 'B', ge=0)


class LinkConfig(Settings):
    """The link between a robot and the server.

    If the link is emulated, robot and server delay the messages that they send, according to the
    trace.
    """

    trace: str = _('outdoor', 'rate over time: a built-in trace (indoor, outdoor, outdoor_fades, '
                              'edge, steady), or a file of "seconds Mbit/s" lines, relative to the '
                              'fleet file; empty: unlimited (real nodes only)', empty=True)
    rate: float = _(0.0, 'constant rate instead of the trace; 0: the trace', 'Mbit/s', ge=0.0)
    scale: float = _(1.0, 'factor on the rate, to fit the size of the model', gt=0.0)
    emulate: bool = _(True, 'let the sender follow trace, rate and latency; false for real links, '
                            'as on robots')
    offset: float = _(0.0, 'where in the trace a robot starts. For the fleet: difference between '
                           'successive robots. For a robot: time in the trace', 's', ge=0.0)
    latency: float = _(0.0, 'delay added to every packet', 's', ge=0.0, le=10.0)


class HeartbeatConfig(Settings):
    """Heartbeats, by which robots and server notice that a peer is gone."""

    period: float = _(0.5, 'time between heartbeats', 's', gt=0.0)
    limit: float = _(3.0, 'silence after which a peer counts as gone', 's', gt=0.0)

    @model_validator(mode='after')
    def _in_order(self) -> 'HeartbeatConfig':
        if self.limit <= self.period:
            raise ValueError(f'has the limit {self.limit} s; it must be longer than '
                             f'heartbeat.period, {self.period} s')
        return self


DISCOVERY_PORT = 11811  # of a discovery server of Fast DDS, unless another is given


class ReachConfig(Settings):
    """Which network the traffic of a fleet uses, and which machines it reaches."""

    interface: str = _('lo', 'network interface; lo keeps all traffic on this machine, regardless '
                             'of the environment')
    domain_id: int = _(-1, 'DDS domain; -1: ROS_DOMAIN_ID if set, else 0', ge=-1, le=232)
    peers: str = _('', 'comma-separated addresses of machines to contact directly, for networks '
                       'without multicast', empty=True,
                   pattern=r'^[A-Za-z0-9.:_%-]*( *, *[A-Za-z0-9.:_%-]+)*$',
                   form='10.0.0.2, laptop.local')
    discovery_server: str = _('', 'comma-separated addresses of discovery servers of Fast DDS or '
                                  'routers of rmw_zenoh, host or host:port (11811, 7447): '
                                  'processes find each other through them, without multicast',
                              empty=True,
                              pattern=r'^[A-Za-z0-9._-]+(:[0-9]{1,5})?'
                                      r'( *, *[A-Za-z0-9._-]+(:[0-9]{1,5})?)*$|^$',
                              form='10.0.0.2 or laptop.local:11811')
    namespace: str = _('', 'namespace of the fleet, in front of those of its server and robots; it '
                           'separates fleets in one domain', empty=True, max_length=64,
                       pattern=r'^(/[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*)*$',
                       form='/blue (letters a to z, digits and single underscores after each '
                            'slash, first a letter)')

    @property
    def peer_list(self) -> list[str]:
        """Return the addresses of the peers."""
        return [peer.strip() for peer in self.peers.split(',') if peer.strip()]

    def discovery_servers(self, default: int = DISCOVERY_PORT) -> list[tuple[str, int]]:
        """Return host and port of each discovery server; ``default``: the port if none is given."""
        parts = (server.strip().partition(':') for server in self.discovery_server.split(','))
        return [(host, int(port or default)) for host, _, port in parts if host]

    @model_validator(mode='after')
    def _reachable(self) -> 'ReachConfig':
        if self.peers and self.interface == 'lo':
            raise ValueError(f'has peers {self.peers}, which cannot be reached over lo; '
                             'name the interface that leads to them')
        if self.peers and self.discovery_server:
            raise ValueError(f'has peers {self.peers} and discovery_server '
                             f'{self.discovery_server}; a fleet uses one of them')
        for host, port in self.discovery_servers():
            if not 0 < port < 65536:
                raise ValueError(f'has discovery_server {host}:{port}; a port is from 1 to 65535')
            if self.interface == 'lo' and host not in ('localhost', '127.0.0.1'):
                raise ValueError(f'has discovery_server {host}, which cannot be reached over lo; '
                                 'name the interface that leads to it')
        return self


class NetworkConfig(ReachConfig):
    """Settings of DDS, and the maximum size of messages."""

    chunk_bytes: int = _(14000, 'most bytes in one chunk of rows', 'B', ge=256, le=65000)
    chunk_time: float = _(0.004, 'duration of a chunk on the link; longer: fewer messages, '
                                 'but more is lost when the link fades', 's', ge=0.0005, le=1.0)


class ServerConfig(Settings):
    """The settings of the parameter server."""

    CONSTANTS = {'device': ('cpu', "is always cpu: the server's rows are on the host"),
                 'drain_limit': (5.0, 'is always 5 s'), 'stop_limit': (60.0, 'is always 60 s'),
                 'implausible': (100.0, 'is always 100')}

    checkpoint_every: float = _(10.0, 'time between checkpoints, and shortest time between two '
                                      'versions of the model while training; 0: none', 's', ge=0.0)
    keep: int = _(3, 'number of newest checkpoints, and of newest versions of the model, to keep; '
                     'the best version stays, too', ge=1)
    patience: float = _(0.0, 'time without progress after which the server retires a robot: the '
                             'others no longer wait for it; 0: four times the duration of an '
                             'iteration, at least heartbeat.limit; inf: never', 's',
                        ge=0.0, allow_inf_nan=True)
    clip: float = _(0.0, 'largest norm of a push, as a factor of the median norm of the robots\' '
                         'pushes; the server drops the rest of the push. 0: no limit', ge=0.0)


class AccessConfig(Settings):
    """Who may take part; SECURITY.md says what is protected."""

    key: str = _('', "key file of the fleet or, on a robot, of the robot, made by rog key; "
                     'relative to the fleet file; empty: that of FLEET_KEY in the environment, '
                     'else no key', empty=True)
    open: bool = _(False, 'allow traffic beyond this machine without a key; this trusts everybody '
                          'on the network')


class SecurityConfig(AccessConfig):
    """Who may take part in a fleet and control it."""

    open: bool = _(False, 'allow traffic beyond this machine without a key, also to a parent '
                          'fleet; this trusts everybody on the network')
    control: bool = _(True, 'let services and the parameter sync stop the run, save it, and change '
                            'its method')


class UpstreamConfig(ReachConfig):
    """The parent fleet, in which this fleet's server is a robot (docs/howto/network.md)."""

    CONSTANTS = {'open': (False, 'has become a part of security.open')}

    robot: str = _('', 'name of this fleet among the robots of its parent fleet; empty: no parent '
                       'fleet', empty=True,
                   **{**ROBOT, 'pattern': f'{ROBOT["pattern"]}|^$'})
    codec: str = _('onebit', 'encoding of the rows in the parent fleet')
    granularity: Literal['model', 'layer', 'row', 'element'] = _(
        'row', 'unit of transmission in the parent fleet')
    rank: int = _(0, "rank of this fleet's first robot among the robots of all fleets, which "
                     'divide the data by rank', ge=0)
    world: int = _(0, 'number of robots of all fleets, which share the data; 0: this fleet has all '
                      'data', ge=0)
    key: str = _('', 'key file of this fleet as a robot of its parent fleet; relative to the fleet '
                     'file; empty: no key', empty=True)
    link: LinkConfig = LinkConfig(trace='')


class StragglerConfig(Settings):
    """How often a robot is late or drops out; a new random draw decides for each gradient."""

    probability: float = _(0.0, 'probability that a gradient takes longer', ge=0.0, le=1.0)
    time: float = _(0.0, 'additional duration of such a gradient', 's', ge=0.0)
    drop_probability: float = _(0.0, 'probability that the robot drops out before a gradient',
                                ge=0.0, le=1.0)
    drop_time: float = _(0.0, 'duration of the dropout, without computing or communicating', 's',
                         ge=0.0)


class Computer(Settings):
    """The computer of a robot."""

    capacity: float = _(1.0, 'relative computing capacity: a gradient takes pace / capacity; '
                             'gradient coding assigns data in proportion', gt=0.0)


class RobotConfig(Computer):
    """One robot.

    If its entry omits a setting, the robot has the fleet's value of this setting.
    """

    name: str = _(..., "the robot's name and namespace", **ROBOT)
    fleet: str = _('', 'fleet file of a child fleet, whose server is this robot; relative to this '
                       'file; empty: an ordinary robot', empty=True)
    link: LinkConfig = LinkConfig()
    pace: float = _(0.0, 'least duration of one gradient computation; default training.pace', 's',
                    ge=0.0)
    power: PowerModel = PowerModel()
    codec_pace: float = _(0.0, 'duration of compressing and decompressing in one iteration; '
                               'default training.codec_pace', 's', ge=0.0)
    stragglers: StragglerConfig = StragglerConfig()


class FleetSettings(Settings):
    """The settings of a fleet file that apply to all robots; each is also a launch argument."""

    seed: int = _(0, 'seed of all random numbers', ge=0, le=2**31 - 1)
    minutes: float = _(1.5, 'duration of the training', 'min', gt=0.0)
    training: TrainingConfig = TrainingConfig()
    link: LinkConfig = LinkConfig()
    channel: ChannelConfig = ChannelConfig()
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    network: NetworkConfig = NetworkConfig()
    server: ServerConfig = ServerConfig()
    security: SecurityConfig = SecurityConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    power: PowerModel = PowerModel()
    stragglers: StragglerConfig = StragglerConfig()


class FleetConfig(FleetSettings):
    """A fleet file; the rank of a robot is its position in the list of robots."""

    # a file name of at most 255 bytes is made from the name and the time
    name: str = _(..., 'name of the fleet', pattern=r'^[A-Za-z0-9][\w.-]*$', max_length=50,
                  form='garden-2 (letters, digits, dots, dashes and underscores, first a letter a '
                       'to z or a digit)')
    robots: tuple[RobotConfig, ...] = _(..., 'the robots')
    description: str = _('', 'what this fleet is for', empty=True)
    file: str = _('', '', empty=True)
    """Path of the file that it was read from; not a setting."""

    def __eq__(self, other: object) -> bool:
        """Return whether both fleets have the same settings, whatever files they were read from."""
        return isinstance(other, FleetConfig) \
            and {**dict(self), 'file': ''} == {**dict(other), 'file': ''}

    def robot(self, name: str) -> RobotConfig:
        """Return the robot called ``name``.

        :raises KeyError: no robot has this name; the message lists the robots.
        """
        for robot in self.robots:
            if robot.name == name:
                return robot
        raise KeyError(f'no robot {name!r}; there are {", ".join(r.name for r in self.robots)}')

    @property
    def capacities(self) -> dict[str, float]:
        """Return the computing capacity of every robot, in order of rank."""
        return {robot.name: robot.capacity for robot in self.robots}

    def rank(self, name: str) -> int:
        """Return the position of the robot called ``name``, from 0."""
        return self.robots.index(self.robot(name))

    def share(self, name: str) -> tuple[int, int]:
        """Return the rank of a robot, and the number of robots.

        If several fleets divide the data among all their robots, both numbers count the robots
        of all these fleets.
        """
        above = self.upstream
        return above.rank + self.rank(name), above.world or above.rank + len(self.robots)

    def robot_defaults(self, index: int, name: str) -> RobotConfig:
        """Return the settings that a robot has if its entry sets nothing.

        :param index: rank of the robot in this fleet.
        """
        return RobotConfig(
            name=name, link=changed(self.link, offset=self.link.offset * index),
            pace=self.training.pace, power=self.power, codec_pace=self.training.codec_pace,
            stragglers=self.stragglers)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a fleet file, with every setting written out.

        The entry of a robot holds only the settings that differ from the fleet's. So an
        override of a setting of the fleet also applies to every robot that has no value of its
        own for this setting.
        """
        head = {'name': self.name, 'description': self.description}
        usual = (self.robot_defaults(*place) for place in enumerate(self.capacities))
        robots = [{'name': robot.name, **_differences(robot, other)}
                  for robot, other in zip(self.robots, usual, strict=True)]
        return {**head, **self.model_dump(exclude={*head, 'robots', 'file'}), 'robots': robots}


def _differences(settings: Settings, usual: Settings) -> dict[str, Any]:
    """Return the settings that differ from the defaults ``usual``; sections become nested dicts."""
    return {key: _differences(value, getattr(usual, key)) if isinstance(value, Settings) else value
            for key, value in settings if value != getattr(usual, key)}
