"""Message classes."""

import array
import copy
from importlib import import_module

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import Quaternion
from rcl_interfaces.msg import Parameter, ParameterType
from rcl_interfaces.srv import ListParameters
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CameraInfo, Image, NavSatStatus, PointCloud2, PointField
from std_msgs.msg import Bool, Empty, Float32, Header, Int8, String, UInt8MultiArray
from std_srvs.srv import SetBool


def test_defaults_and_keywords():
    image = Image(height=4, data=[1, 2, 3])
    assert (image.height, image.width, image.encoding) == (4, 0, "")
    assert image.header == Header()
    assert image.header.stamp == Time(sec=0, nanosec=0)


def test_defaults_of_the_definition():
    assert Quaternion().w == 1.0
    assert NavSatStatus().status == -2


def test_constants():
    assert ParameterType.PARAMETER_STRING == 4
    assert NavSatStatus.STATUS_NO_FIX == -1
    assert DiagnosticStatus.WARN == b"\x01"
    assert DiagnosticStatus().level == DiagnosticStatus.OK
    assert ListParameters.Request.DEPTH_RECURSIVE == 0


def test_byte_arrays_are_arrays_with_the_buffer_protocol():
    for value in ([1, 2, 255], b"\x01\x02\xff", array.array("B", [1, 2, 255]), (1, 2, 255)):
        message = UInt8MultiArray(data=value)
        assert message.data == array.array("B", [1, 2, 255])
        assert bytes(memoryview(message.data)) == b"\x01\x02\xff"
        assert np.frombuffer(message.data, dtype=np.uint8).tolist() == [1, 2, 255]


def test_an_array_is_kept_and_not_copied_by_assignment():
    data = array.array("B", [1])
    message = UInt8MultiArray()
    message.data = data
    assert message.data is data


def test_fixed_arrays_are_numpy():
    info = CameraInfo()
    assert info.k.shape == (9,)
    info.k = np.arange(9, dtype=np.float64)
    assert info.k[8] == 8.0
    with pytest.raises(AssertionError):
        info.k = np.zeros(8)


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (String, {"data": 1}),
        (String, {"data": b"x"}),
        (Int8, {"data": 128}),
        (Int8, {"data": "1"}),
        (Bool, {"data": 1}),
        (Float32, {"data": 1}),
        (Float32, {"data": 1e39}),
        (Header, {"stamp": 1}),
        (DiagnosticArray, {"status": [1]}),
        (DiagnosticStatus, {"level": 1}),
        (String, {"text": "no such field"}),
    ],
)
def test_wrong_values_are_refused(cls, values):
    with pytest.raises((AssertionError, TypeError)):
        cls(**values)


def test_wrong_assignment_is_refused():
    message = UInt8MultiArray()
    with pytest.raises((AssertionError, OverflowError)):
        message.data = [256]
    with pytest.raises(AssertionError):
        message.layout = None


def test_equality_and_copies():
    a = DiagnosticStatus(name="a", values=[KeyValue(key="k", value="v")])
    b = copy.deepcopy(a)
    assert a == b
    b.values[0].value = "w"
    assert a != b
    assert String(data="x") != Bool()


def test_repr():
    assert repr(String(data="x")) == "std_msgs.msg.String(data='x')"
    assert repr(UInt8MultiArray(data=[1, 2])).endswith("data=[1, 2])")
    assert repr(SetBool.Request(data=True)) == "std_srvs.srv.SetBool_Request(data=True)"


def test_field_types():
    assert Header.get_fields_and_field_types() == {
        "stamp": "builtin_interfaces/Time",
        "frame_id": "string",
    }
    assert Image.get_fields_and_field_types()["data"] == "sequence<uint8>"
    assert CameraInfo.get_fields_and_field_types()["k"] == "double[9]"
    assert DiagnosticStatus.get_fields_and_field_types()["level"] == "octet"
    assert Empty.get_fields_and_field_types() == {}


def test_serialization():
    message = DiagnosticArray(
        header=Header(frame_id="map"),
        status=[
            DiagnosticStatus(level=b"\x02", name="Jäger", values=[KeyValue(key="a", value="")]),
            DiagnosticStatus(message="second"),
        ],
    )
    data = serialize_message(message)
    assert data[:4] == b"\x00\x01\x00\x00"
    assert deserialize_message(data, DiagnosticArray) == message


def test_serialization_of_known_bytes():
    data = serialize_message(String(data="hi"))
    assert data[:11] == b"\x00\x01\x00\x00\x03\x00\x00\x00hi\x00"
    assert serialize_message(Empty())[:5] == b"\x00\x01\x00\x00\x00"


def test_parameter_message_keeps_types():
    message = Parameter(name="p")
    message.value.double_array_value = [1.0, 2.0]
    message.value.string_array_value = ["a", "b"]
    message.value.bool_array_value = [True, False]
    message.value.byte_array_value = [b"\x07"]
    got = deserialize_message(serialize_message(message), Parameter)
    assert got.value.double_array_value == array.array("d", [1.0, 2.0])
    assert list(got.value.string_array_value) == ["a", "b"]
    assert list(got.value.bool_array_value) == [True, False]
    assert list(got.value.byte_array_value) == [b"\x07"]


def test_our_own_messages():
    # Where ROS 2 is sourced without our packages, importing them says so with an ImportError.
    rog_msgs = pytest.importorskip("rog_msgs.msg", exc_type=ImportError)
    chunk = rog_msgs.RowChunk(incarnation=2**63, kind=rog_msgs.RowChunk.PULL, values=b"abc")
    assert (chunk.kind, chunk.values.tobytes()) == (1, b"abc")
    fleet = rog_msgs.FleetStatus(robots=[rog_msgs.RobotStatus(robot="r1", bandwidth=1.5)])
    data = serialize_message(fleet)
    assert deserialize_message(data, rog_msgs.FleetStatus) == fleet


def test_a_field_called_fields():
    cloud = PointCloud2(height=1, fields=[PointField(name="x", datatype=PointField.FLOAT32)])
    assert cloud.fields[0].name == "x"
    assert "fields" in PointCloud2.get_fields_and_field_types()
    assert deserialize_message(serialize_message(cloud), PointCloud2) == cloud


COMMON = {  # common_interfaces of Jazzy: messages and services that there are at least
    "diagnostic_msgs": (3, 2), "geometry_msgs": (32, 0), "nav_msgs": (5, 4),
    "sensor_msgs": (27, 1), "shape_msgs": (4, 0), "std_msgs": (30, 0), "std_srvs": (0, 3),
    "stereo_msgs": (1, 0), "trajectory_msgs": (4, 0), "visualization_msgs": (12, 1),
}  # fmt: skip


@pytest.mark.parametrize("package", COMMON)
def test_every_type_of_common_interfaces(package):
    for folder, count in zip(("msg", "srv"), COMMON[package]):
        if not count:
            continue
        module = import_module(f"{package}.{folder}")
        names = [name for name in dir(module) if name[:1].isupper()]
        if folder == "srv":
            # The real module also has the parts of each service.
            names = [n for n in names if not n.endswith(("_Request", "_Response", "_Event"))]
        assert len(names) >= count
        for name in names:
            cls = getattr(module, name)
            for part in (cls,) if folder == "msg" else (cls.Request, cls.Response):
                message = part()
                assert deserialize_message(serialize_message(message), part) == message
