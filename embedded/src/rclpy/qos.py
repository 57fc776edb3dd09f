"""Quality of service: rclpy's profiles, and what they are in DDS."""

from __future__ import annotations

import warnings
from enum import Enum, IntEnum
from typing import Any

from cyclonedds.qos import Policy

from rclpy.duration import Duration, Infinite

_ZERO = Duration()
_INT32_MAX = 2**31 - 1


class InvalidQoSProfileException(Exception):
    """A profile is made without what it needs."""

    def __init__(self, *args: Any) -> None:
        super().__init__("Invalid QoSProfile", *args)


class QoSPolicyEnum(IntEnum):
    """Base of the policies; values are those of rmw/types.h."""

    @classmethod
    def short_keys(cls) -> list[str]:
        """Return the policies' names in lower case."""
        return [k.lower() for k in cls.__members__]

    @classmethod
    def get_from_short_key(cls, name: str) -> int:
        """Return the value of a name in any case."""
        return cls[name.upper()].value

    @property
    def short_key(self) -> str:
        """The name in lower case."""
        return self.name.lower()


class HistoryPolicy(QoSPolicyEnum):
    """How many samples are kept."""

    SYSTEM_DEFAULT = 0
    KEEP_LAST = 1
    KEEP_ALL = 2
    UNKNOWN = 3


class ReliabilityPolicy(QoSPolicyEnum):
    """Whether lost samples are sent again."""

    SYSTEM_DEFAULT = 0
    RELIABLE = 1
    BEST_EFFORT = 2
    UNKNOWN = 3
    BEST_AVAILABLE = 4


class DurabilityPolicy(QoSPolicyEnum):
    """Whether late joiners get earlier samples."""

    SYSTEM_DEFAULT = 0
    TRANSIENT_LOCAL = 1
    VOLATILE = 2
    UNKNOWN = 3
    BEST_AVAILABLE = 4


class LivelinessPolicy(QoSPolicyEnum):
    """How a writer shows that it lives."""

    SYSTEM_DEFAULT = 0
    AUTOMATIC = 1
    MANUAL_BY_TOPIC = 3
    UNKNOWN = 4
    BEST_AVAILABLE = 5


QoSHistoryPolicy = HistoryPolicy
QoSReliabilityPolicy = ReliabilityPolicy
QoSDurabilityPolicy = DurabilityPolicy
QoSLivelinessPolicy = LivelinessPolicy

_FIELDS: dict[str, tuple[Any, Any]] = {  # name: (type, default)
    "history": (HistoryPolicy, HistoryPolicy.KEEP_LAST),
    "depth": (int, 10),
    "reliability": (ReliabilityPolicy, ReliabilityPolicy.RELIABLE),
    "durability": (DurabilityPolicy, DurabilityPolicy.VOLATILE),
    "lifespan": (Duration, _ZERO),
    "deadline": (Duration, _ZERO),
    "liveliness": (LivelinessPolicy, LivelinessPolicy.SYSTEM_DEFAULT),
    "liveliness_lease_duration": (Duration, _ZERO),
    "avoid_ros_namespace_conventions": (bool, False),
}


class QoSProfile:
    """Quality of service of a publisher, subscription, client or service.

    :param history: needed unless `depth` is given (then KEEP_LAST)
    :param depth: samples kept with KEEP_LAST
    """

    history: HistoryPolicy
    depth: int
    reliability: ReliabilityPolicy
    durability: DurabilityPolicy
    lifespan: Duration
    deadline: Duration
    liveliness: LivelinessPolicy
    liveliness_lease_duration: Duration
    avoid_ros_namespace_conventions: bool

    __slots__ = tuple(_FIELDS)

    def __init__(self, **kwargs: Any) -> None:
        assert kwargs.keys() <= _FIELDS.keys(), (
            f"Invalid arguments passed to constructor: {kwargs.keys()!r}"
        )
        if "history" not in kwargs:
            if "depth" not in kwargs:
                raise InvalidQoSProfileException("History and/or depth settings are required.")
        elif kwargs["history"] == HistoryPolicy.KEEP_LAST and "depth" not in kwargs:
            raise InvalidQoSProfileException("History set to KEEP_LAST without a depth setting.")
        for name, (_, default) in _FIELDS.items():
            setattr(self, name, kwargs.get(name, default))

    def __setattr__(self, name: str, value: Any) -> None:
        kind, _ = _FIELDS[name]
        if issubclass(kind, IntEnum):
            assert isinstance(value, int), f"{name} must be a {kind.__name__}"
            value = kind(value)
        assert isinstance(value, kind), f"{name} must be a {kind.__name__}, not {value!r}"
        if name == "depth" and value == 0 and self.history == HistoryPolicy.KEEP_LAST:
            warnings.warn(
                "A zero depth with KEEP_LAST doesn't make sense; no data could be stored. "
                "This will be interpreted as SYSTEM_DEFAULT",
                stacklevel=3,
            )
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QoSProfile):
            return False
        return all(getattr(self, n) == getattr(other, n) for n in _FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"QoSProfile({', '.join(f'{n}={getattr(self, n)!s}' for n in _FIELDS)})"


def _keep_last(depth: int, **kwargs: Any) -> QoSProfile:
    return QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=depth, **kwargs)


qos_profile_default = _keep_last(10)
qos_profile_sensor_data = _keep_last(5, reliability=ReliabilityPolicy.BEST_EFFORT)
qos_profile_services_default = _keep_last(10)
qos_profile_parameters = _keep_last(1000)
qos_profile_parameter_events = _keep_last(1000)
qos_profile_rosout_default = _keep_last(
    1000, durability=DurabilityPolicy.TRANSIENT_LOCAL, lifespan=Duration(seconds=10)
)
qos_profile_action_status_default = _keep_last(1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
qos_profile_system_default = QoSProfile(
    history=HistoryPolicy.SYSTEM_DEFAULT,
    depth=0,
    reliability=ReliabilityPolicy.SYSTEM_DEFAULT,
    durability=DurabilityPolicy.SYSTEM_DEFAULT,
)
qos_profile_unknown = QoSProfile(
    history=HistoryPolicy.UNKNOWN,
    depth=0,
    reliability=ReliabilityPolicy.UNKNOWN,
    durability=DurabilityPolicy.UNKNOWN,
    liveliness=LivelinessPolicy.UNKNOWN,
)
qos_profile_best_available = _keep_last(
    10,
    reliability=ReliabilityPolicy.BEST_AVAILABLE,
    durability=DurabilityPolicy.BEST_AVAILABLE,
    liveliness=LivelinessPolicy.BEST_AVAILABLE,
)


class QoSPresetProfiles(Enum):
    """The profiles above, by name."""

    UNKNOWN = qos_profile_unknown
    DEFAULT = qos_profile_default
    SYSTEM_DEFAULT = qos_profile_system_default
    SENSOR_DATA = qos_profile_sensor_data
    SERVICES_DEFAULT = qos_profile_services_default
    PARAMETERS = qos_profile_parameters
    PARAMETER_EVENTS = qos_profile_parameter_events
    ACTION_STATUS_DEFAULT = qos_profile_action_status_default
    BEST_AVAILABLE = qos_profile_best_available

    @classmethod
    def short_keys(cls) -> list[str]:
        """Return the profiles' names in lower case."""
        return [k.lower() for k in cls.__members__]

    @classmethod
    def get_from_short_key(cls, name: str) -> QoSProfile:
        """Return the profile of a name in any case."""
        return cls[name.upper()].value


class QoSCompatibility(IntEnum):
    """Whether a publisher and a subscription can talk; WARNING: it depends."""

    OK = 0
    WARNING = 1
    ERROR = 2


# Policy, what a publisher offers that does not satisfy what a subscription requests.
_CLASHES = (
    ("reliability", ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE),
    ("durability", DurabilityPolicy.VOLATILE, DurabilityPolicy.TRANSIENT_LOCAL),
    ("liveliness", LivelinessPolicy.AUTOMATIC, LivelinessPolicy.MANUAL_BY_TOPIC),
)


def qos_check_compatible(
    publisher_qos: QoSProfile, subscription_qos: QoSProfile
) -> tuple[QoSCompatibility, str]:
    """Return whether publisher and subscription can talk, and why not.

    WARNING when that depends on what SYSTEM_DEFAULT (or UNKNOWN) stands for.
    """
    errors, warnings_ = [], []
    for policy, weak, strong in _CLASHES:
        offered, requested = getattr(publisher_qos, policy), getattr(subscription_qos, policy)
        text = f"publisher's {policy} is {offered.name}, subscription's is {requested.name};"
        open_ends = [p.name in ("SYSTEM_DEFAULT", "UNKNOWN") for p in (offered, requested)]
        if offered is weak and requested is strong:
            errors.append(f"ERROR: {text}")
        elif (open_ends[0] or offered is weak) and (open_ends[1] or requested is strong):
            warnings_.append(f"WARNING: {text}")
    for policy in ("deadline", "liveliness_lease_duration"):
        longest, asked = getattr(publisher_qos, policy), getattr(subscription_qos, policy)
        if asked != _ZERO and (longest == _ZERO or asked < longest):
            errors.append(f"ERROR: publisher's {policy} is {longest}, subscription's is {asked};")
    if errors:
        return QoSCompatibility.ERROR, " ".join(errors)
    if warnings_:
        return QoSCompatibility.WARNING, " ".join(warnings_)
    return QoSCompatibility.OK, ""


def to_dds(profile: QoSProfile, user_data: bytes, writer: bool) -> list[Any]:
    """Return a profile as cyclonedds policies, mapped as rmw_cyclonedds_cpp does.

    BEST_AVAILABLE is taken as what matches most endpoints: the strongest offer of a writer, the
    weakest request of a reader.
    """
    if profile.history == HistoryPolicy.UNKNOWN or 3 in (profile.reliability, profile.durability):
        raise ValueError(f"a QoS profile with UNKNOWN policies cannot be used: {profile}")
    best = ReliabilityPolicy.RELIABLE if writer else ReliabilityPolicy.BEST_EFFORT
    reliability = best if profile.reliability == 4 else profile.reliability
    lasting = DurabilityPolicy.TRANSIENT_LOCAL if writer else DurabilityPolicy.VOLATILE
    durability = lasting if profile.durability == 4 else profile.durability
    if profile.history == HistoryPolicy.KEEP_ALL:
        history: Any = Policy.History.KeepAll
    else:
        history = Policy.History.KeepLast(min(profile.depth or 1, _INT32_MAX))
    policies: list[Any] = [
        history,
        Policy.Reliability.BestEffort
        if reliability == ReliabilityPolicy.BEST_EFFORT
        else Policy.Reliability.Reliable(max_blocking_time=Infinite.nanoseconds),
        Policy.DataRepresentation(use_cdrv0_representation=True),
        Policy.Userdata(user_data),
    ]
    if writer:
        policies.append(Policy.WriterDataLifecycle(autodispose=False))
    if durability == DurabilityPolicy.TRANSIENT_LOCAL:
        # Cyclone keeps for late joiners what the durability service says, not what history says.
        policies += [
            Policy.Durability.TransientLocal,
            Policy.DurabilityService(0, history, -1, -1, -1),
        ]
    else:
        policies.append(Policy.Durability.Volatile)
    if profile.lifespan != _ZERO and writer:
        policies.append(Policy.Lifespan(profile.lifespan.nanoseconds))
    if profile.deadline != _ZERO:
        policies.append(Policy.Deadline(profile.deadline.nanoseconds))
    lease = profile.liveliness_lease_duration
    lease_ns = Infinite.nanoseconds if lease == _ZERO else lease.nanoseconds
    manual = profile.liveliness == LivelinessPolicy.MANUAL_BY_TOPIC
    kind = Policy.Liveliness.ManualByTopic if manual else Policy.Liveliness.Automatic
    policies.append(kind(lease_ns))
    return policies


def from_dds(qos: Any) -> tuple[QoSProfile, bytes]:
    """Return the profile of a cyclonedds Qos, as rmw_cyclonedds_cpp does, and its USER_DATA."""

    def nanoseconds(policy: Any, name: str) -> Duration:
        value = getattr(qos[policy], name) if policy in qos else Infinite.nanoseconds
        return Duration(nanoseconds=min(value, Infinite.nanoseconds))

    history, liveliness = qos[Policy.History], qos[Policy.Liveliness]
    last = isinstance(history, Policy.History.KeepLast)
    best_effort = qos[Policy.Reliability] == Policy.Reliability.BestEffort
    lasting = qos[Policy.Durability] == Policy.Durability.TransientLocal
    manual = isinstance(liveliness, Policy.Liveliness.ManualByTopic)
    profile = QoSProfile(
        history=HistoryPolicy.KEEP_LAST if last else HistoryPolicy.KEEP_ALL,
        depth=history.depth if last else 0,
        reliability=ReliabilityPolicy.BEST_EFFORT if best_effort else ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if lasting else DurabilityPolicy.VOLATILE,
        lifespan=nanoseconds(Policy.Lifespan, "lifespan"),
        deadline=nanoseconds(Policy.Deadline, "deadline"),
        liveliness=LivelinessPolicy.MANUAL_BY_TOPIC if manual else LivelinessPolicy.AUTOMATIC,
        liveliness_lease_duration=nanoseconds(Policy.Liveliness, "lease_duration"),
    )
    return profile, qos[Policy.Userdata].data if Policy.Userdata in qos else b""
