"""Our own parts: definitions, hashes, CDR."""

import struct

import numpy as np
import pytest
from support import EMBEDDED

if not EMBEDDED:
    pytest.skip("a real rclpy is sourced: nothing of embedded/ is used", allow_module_level=True)

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rclpy import _names
from rclpy._cdr import ARRAY_CODES, CdrError
from rclpy._definitions import UnknownTypeError, _describe, lookup, names, type_hash
from rclpy._message import message_class, wire_type
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

# What a ROS 2 Jazzy built from source says (the .json files that rosidl installs).
REAL_HASHES = {
    "std_msgs/msg/String": "RIHS01_df668c740482bbd48fb39d76a70dfd4bd59db1288021743503259e948f6b1a18",
    "rmw_dds_common/msg/Gid": "RIHS01_ab6f21cfbb0a6dbb837161e1110c2051a2850ed9f9c53944d7115d9bcebedf71",
    "std_msgs/msg/Header": "RIHS01_f49fb3ae2cf070f793645ff749683ac6b06203e41c891e17701b1cb597ce6a01",
    "std_msgs/msg/UInt8MultiArray": "RIHS01_5687e861b8d307a5e48b7515467ae7a5fc2daf805bd0ce6d8e9e604bade9f385",
    "diagnostic_msgs/msg/DiagnosticArray": "RIHS01_5a8a36efb05fb25070fa0fb3810290c0e6cd4862b54a8fb975a1ee8dc55a333e",
    "sensor_msgs/msg/Image": "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47",
    "sensor_msgs/msg/CameraInfo": "RIHS01_b3dfd68ff46c9d56c80fd3bd4ed22c7a4ddce8c8348f2f59c299e73118e7e275",
    "rcl_interfaces/msg/Log": "RIHS01_e28ce254ca8abc06abf92773b74602cdbf116ed34fbaf294fb9f81da9f318eac",
    "rcl_interfaces/msg/ParameterEvent": "RIHS01_043e627780fcad87a22d225bc2a037361dba713fca6a6b9f4b869a5aa0393204",
    "rmw_dds_common/msg/ParticipantEntitiesInfo": "RIHS01_91a0593bacdcc50ea9bdcf849a938b128412cc1ea821245c663bcd26f83c295e",
    "rosgraph_msgs/msg/Clock": "RIHS01_692f7a66e93a3c83e71765d033b60349ba68023a8c689a79e48078bcb5c58564",
    "geometry_msgs/msg/PoseStamped": "RIHS01_10f3786d7d40fd2b54367835614bff85d4ad3b5dab62bf8bca0cc232d73b4cd8",
    "std_msgs/msg/Empty": "RIHS01_20b625256f32d5dbc0d04fee44f43c41e51c70d3502f84b4a08e7a9c26a96312",
    "rcl_interfaces/srv/SetParameters_Request": "RIHS01_130d46386b7e84ea9ecf60608a4d83cbe5e5cb7c6cc5b712b7a4e3a6c254e932",
    "rcl_interfaces/srv/SetParameters_Response": "RIHS01_7a0e8140a0b8d98308fa81a5403a766e610af29a239caf54b7553227906fc266",
    "rcl_interfaces/srv/ListParameters_Request": "RIHS01_a1b0b5d6b967a5b8ac5bc8563c3ea678f349e312a6a4967227c5a96bc5ce38df",
    "rcl_interfaces/srv/ListParameters_Response": "RIHS01_31b937b82de3612426be79f231e386259f97e8dc843e3f2845288b4bfa296bdd",
    "rcl_interfaces/srv/DescribeParameters_Request": "RIHS01_05dd1c2bc87dec2627105c8070d6f9725c781a4f2ab852975bf105462b82b644",
    "rcl_interfaces/srv/DescribeParameters_Response": "RIHS01_ad6747319613c6131589e062e095b469a46cc764f7d0f12a001a49e6cd893995",
    "std_srvs/srv/SetBool_Request": "RIHS01_c62fbb99d94e1b25e8ef9e109f9581956bb1b3361a45a4e5810c36a90d29932e",
    "std_srvs/srv/SetBool_Response": "RIHS01_d0814e7f7b4880ab77e9c57426c7aa1562ab69f11eef8e2e968812f9cbd0b059",
    "std_srvs/srv/Empty_Request": "RIHS01_458eaf200a3f63d9cc53d19436edebc0c140ef4c93ca75d5bd4ce19fd7759e35",
    "std_srvs/srv/Empty_Response": "RIHS01_0a2858b3f60df644a61d0fa44cfc923a3d3628e0ad9c8ad8534b1a2c92a413dc",
    "std_srvs/srv/Trigger_Request": "RIHS01_d010825374ce8918e72bfd826c82603e60f45419e932ea976f807b74a863a199",
    "std_srvs/srv/Trigger_Response": "RIHS01_2d946c21e2fc3f1e9ca6986a8191d85fcc70097a8bb7771a053564bc47009cdf",
}

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
        return st.floats(width=int(field.base[5:]), allow_nan=False)
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
    fields = {f.name: values(f) for f in lookup(name).fields}
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


def to_plain(store, message):
    definition = message._definition
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


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(message=st.sampled_from(TYPES).flatmap(messages))
def test_cdr_equals_that_of_rosbags(message):
    ours = message._serialize(message)
    theirs = bytes(STORE.serialize_cdr(to_plain(STORE, message), message._definition.name))
    assert ours == theirs
    assert type(message)._deserialize(ours) == message


@settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))
@given(message=st.sampled_from(TYPES).flatmap(messages))
def test_big_endian_is_understood(message):
    plain = to_plain(STORE, message)
    data = STORE.serialize_cdr(plain, message._definition.name, little_endian=False)
    assert type(message)._deserialize(bytes(data)) == message


@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    message=st.sampled_from(TYPES).flatmap(messages),
    cut=st.integers(0, 10_000),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
)
def test_malformed_cdr_raises_one_kind_of_error(message, cut, changes):
    data = bytearray(message._serialize(message))
    for position, value in changes:
        data[position % len(data)] = value
    data = bytes(data[: cut % (len(data) + 1)])
    try:
        type(message)._deserialize(data)
    except CdrError:
        pass


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=200), name=st.sampled_from(TYPES))
def test_noise_raises_one_kind_of_error(data, name):
    for header in (b"", b"\0\1\0\0", b"\0\0\0\0"):
        try:
            message_class(name)._deserialize(header + data)
        except CdrError:
            pass


def test_lengths_are_checked_before_memory_is_used():
    huge = b"\0\1\0\0" + b"\xff\xff\xff\x7f" + bytes(8)
    for name in ("std_msgs/msg/String", "rmw_dds_common/msg/ParticipantEntitiesInfo"):
        with pytest.raises(CdrError):
            message_class(name)._deserialize(huge)


def test_jazzy_definitions_are_used():
    jazzy = get_typestore(Stores.ROS2_JAZZY)
    for name in ("rcl_interfaces/msg/ParameterDescriptor", "sensor_msgs/msg/Image"):
        assert type_hash(name) == jazzy.hash_rihs01(name)
