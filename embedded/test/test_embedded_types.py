"""Our own parts: definitions, hashes, CDR."""

import contextlib
import struct
import subprocess
import sys
from array import array
from math import inf
from pathlib import Path

import numpy as np
import pytest
from fleet_testing import examples, free_domain
from hypothesis import given
from hypothesis import strategies as st
from rclpy import _names
from rclpy._cdr import ARRAY_CODES, CdrError
from rclpy._definitions import (
    EMPTY_MEMBER,
    UnknownTypeError,
    _describe,
    lookup,
    names,
    type_hash,
)
from rclpy._message import message_class, wire_type
from rclpy.serialization import deserialize_message, serialize_message
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

REAL_HASHES = dict(
    line.split()
    for line in (Path(__file__).parent / "real_hashes.txt").read_text().splitlines()
    if not line.startswith("#")
)

TYPES = [
    "std_msgs/msg/Header",
    "std_msgs/msg/UInt8MultiArray",
    "std_msgs/msg/Int64MultiArray",
    "diagnostic_msgs/msg/DiagnosticArray",
    "rcl_interfaces/msg/ParameterEvent",
    "rmw_dds_common/msg/ParticipantEntitiesInfo",
    "sensor_msgs/msg/CameraInfo",
    "sensor_msgs/msg/JointState",
    "geometry_msgs/msg/PoseWithCovarianceStamped",
    "rog_msgs/msg/RowChunk",
    "rog_msgs/msg/FleetStatus",
    "rog_msgs/msg/TransferReceipt",
    "rog_msgs/srv/Register_Request",
    "rog_msgs/srv/Register_Response",
]


@pytest.mark.parametrize("name", REAL_HASHES)
def test_hashes_are_those_of_ros(name):
    assert type_hash(name) == REAL_HASHES[name]


def test_names_on_the_wire():
    assert wire_type(message_class("std_msgs/msg/String"))[0] == "std_msgs::msg::dds_::String_"
    request = message_class("std_srvs/srv/SetBool_Request")
    assert wire_type(request)[0] == "std_srvs::srv::dds_::SetBool_Request_"
    assert _names.topic_to_dds("/a/b") == "rt/a/b"
    assert _names.request_to_dds("/a/b") == "rq/a/bRequest"
    assert _names.reply_to_dds("/a/b") == "rr/a/bReply"
    assert _names.topic_from_dds("rt/a") == "/a" and _names.topic_from_dds("ros_discovery") is None
    assert _names.service_from_dds("rr/a/bReply") == "/a/b"
    assert _names.service_from_dds("rt/a") is None
    assert _names.type_from_dds("std_msgs::msg::dds_::String_") == "std_msgs/msg/String"
    assert _names.service_type_from_dds("p::srv::dds_::X_Request_") == "p/srv/X"


def test_definitions_come_from_the_message_files():
    assert {"RowChunk", "FleetStatus"} <= set(names("rog_msgs", "msg"))
    assert {"Register", "SetSync"} <= set(names("rog_msgs", "srv"))
    with pytest.raises(UnknownTypeError):
        lookup("rog_msgs/msg/Nonsense")
    with pytest.raises(ImportError):
        from std_msgs.msg import Nonsense  # noqa: F401


LIMITS = {
    f"{u}int{b}": (0 if u else -(2 ** (b - 1)), 2 ** (b - (not u)) - 1)
    for u in ("", "u")
    for b in (8, 16, 32, 64)
}


def element(field):
    if field.is_message:
        return messages(field.base)
    if field.base in LIMITS:
        return st.integers(*LIMITS[field.base])
    if field.base.startswith("float"):
        values = st.floats(width=int(field.base[5:]), allow_nan=False)
        # rosidl's limit is a decimal, just below the largest float32.
        return values.filter(lambda v: field.base == "float64" or not 3.402823466e38 < abs(v) < inf)
    if field.base == "bool":
        return st.booleans()
    if field.base == "byte":
        return st.binary(min_size=1, max_size=1)
    return st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)


def values(field):
    if field.kind == "scalar":
        return element(field)
    low = field.size if field.kind == "array" else 0
    return st.lists(element(field), min_size=low, max_size=field.size or 4)


def messages(name):
    fields = {f.name: values(f) for f in lookup(name).fields if f.name != EMPTY_MEMBER}
    return st.fixed_dictionaries(fields).map(lambda kwargs: message_class(name)(**kwargs))


def oracle():
    """A rosbags type store with our definitions."""
    store = Typestore()
    for name in TYPES:
        todo = [name]
        while todo:
            current = todo.pop()
            if current in store.fielddefs:
                continue
            definition = lookup(current)
            store.fielddefs[current] = ([], [(f.name, _describe(f)) for f in definition.fields])
            store.types[current] = make_plain(definition)
            todo += [f.base for f in definition.fields if f.is_message]
    return store


def make_plain(definition):
    """A class as rosbags makes them: numpy arrays, positional arguments."""
    fields = [f.name for f in definition.fields]

    class Plain:
        def __init__(self, *args):
            self.__dict__.update(zip(fields, args))

    return Plain


def type_name(message):
    package, folder, _, name = wire_type(type(message))[0].split("::")
    return f"{package}/{folder}/{name.removesuffix('_')}"


def to_plain(store, message):
    definition = lookup(type_name(message))
    args = []
    for field in definition.fields:
        value = getattr(message, field.name)
        if field.is_message:
            value = (
                to_plain(store, value)
                if field.kind == "scalar"
                else [to_plain(store, v) for v in value]
            )
        elif field.base == "byte":
            value = (
                struct.unpack("b", value)[0]
                if field.kind == "scalar"
                else np.frombuffer(b"".join(value), dtype=np.int8)
            )
        elif field.kind != "scalar" and field.base in ("bool", *ARRAY_CODES):
            value = np.array(list(value), dtype=field.base)
        args.append(value)
    return store.types[definition.name](*args)


STORE = oracle()


@examples(200)
@given(message=st.sampled_from(TYPES).flatmap(messages))
def test_cdr_equals_that_of_rosbags(message):
    ours = serialize_message(message)
    theirs = bytes(STORE.serialize_cdr(to_plain(STORE, message), type_name(message)))
    assert ours == theirs
    assert deserialize_message(ours, type(message)) == message


@examples(50)
@given(message=st.sampled_from(TYPES).flatmap(messages))
def test_big_endian_is_understood(message):
    plain = to_plain(STORE, message)
    data = STORE.serialize_cdr(plain, type_name(message), little_endian=False)
    assert deserialize_message(bytes(data), type(message)) == message


@examples(300)
@given(
    message=st.sampled_from(TYPES).flatmap(messages),
    cut=st.integers(0, 10_000),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
)
def test_malformed_cdr_raises_one_kind_of_error(message, cut, changes):
    data = bytearray(serialize_message(message))
    for position, value in changes:
        data[position % len(data)] = value
    data = bytes(data[: cut % (len(data) + 1)])
    try:
        deserialize_message(data, type(message))
    except CdrError:
        pass


@examples(200)
@given(data=st.binary(max_size=200), name=st.sampled_from(TYPES))
def test_noise_raises_one_kind_of_error(data, name):
    for header in (b"", b"\0\1\0\0", b"\0\0\0\0"):
        with contextlib.suppress(CdrError):
            deserialize_message(header + data, message_class(name))


def test_lengths_are_checked_before_memory_is_used():
    huge = b"\0\1\0\0" + b"\xff\xff\xff\x7f" + bytes(8)
    for name in ("std_msgs/msg/String", "rmw_dds_common/msg/ParticipantEntitiesInfo"):
        with pytest.raises(CdrError):
            deserialize_message(huge, message_class(name))


def test_jazzy_definitions_are_used():
    jazzy = get_typestore(Stores.ROS2_JAZZY)
    for name in ("rcl_interfaces/msg/ParameterDescriptor", "sensor_msgs/msg/Image"):
        assert type_hash(name) == jazzy.hash_rihs01(name)


COMMON_TYPES = sorted(
    f"{package}/msg/{name}"
    for package in (
        "actionlib_msgs", "diagnostic_msgs", "geometry_msgs", "nav_msgs", "sensor_msgs",
        "shape_msgs", "std_msgs", "stereo_msgs", "tf2_msgs", "trajectory_msgs",
        "unique_identifier_msgs", "visualization_msgs",
    )
    for name in names(package, "msg")
)  # fmt: skip


@pytest.mark.parametrize("name", COMMON_TYPES)
def test_common_interfaces_keep_their_values(name):
    @examples(5)
    @given(messages(name))
    def keep(message):
        assert deserialize_message(serialize_message(message), type(message)) == message

    keep()


def test_a_package_of_ones_own(tmp_path, monkeypatch):
    folder = tmp_path / "own_msgs" / "msg"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text(
        "from rclpy._types import load\n__getattr__, __dir__, __all__ = load(__name__)\n"
    )
    (folder / "Defaults.msg").write_text(
        "byte single 7\nbyte[] some [0, 1, 255]\nbyte[2] two [3, 4]\nint32[] numbers [5, -6]\n"
        "float64[2] pair [1.5, 2.5]\nstring[] texts [a, b]\nbool[2] flags [true, false]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from own_msgs.msg import Defaults

    message = Defaults()
    assert (message.single, message.SINGLE__DEFAULT) == (b"\x07", b"\x07")
    assert message.some == message.SOME__DEFAULT == [b"\0", b"\x01", b"\xff"]
    assert message.two == [b"\x03", b"\x04"]
    assert message.numbers == array("i", [5, -6])
    assert message.pair.tolist() == [1.5, 2.5]
    assert (message.texts, message.flags) == (["a", "b"], [True, False])
    message.some.append(b"\x02")
    assert len(Defaults().some) == 3
    assert deserialize_message(serialize_message(message), Defaults) == message


def test_modules_that_nobody_has_imported():
    # Programs say `import rclpy` and then `rclpy.executors`.
    program = (
        "import rclpy; assert rclpy.executors.SingleThreadedExecutor and rclpy.qos.QoSProfile; "
        "assert not hasattr(rclpy, 'nonsense')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_every_context_needs_is_made_at_the_import():
    # A process that is forked after the import has it, too: it is half of what a context costs.
    program = (
        "import rclpy; rclpy.init; from rclpy import _dds; "
        f"made = _dds.opaque_type.cache_info().currsize; rclpy.init(domain_id={free_domain()}); "
        "assert made == _dds.opaque_type.cache_info().currsize == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
