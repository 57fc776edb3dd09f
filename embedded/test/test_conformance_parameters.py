"""Parameters, their services, and what the command line says about them."""

import pytest
from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    ParameterEvent,
    SetParametersResult,
)
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    GetParameterTypes,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from rclpy.exceptions import (
    InvalidParameterTypeException,
    InvalidParameterValueException,
    ParameterAlreadyDeclaredException,
    ParameterImmutableException,
    ParameterNotDeclaredException,
    ParameterUninitializedException,
)
from rclpy.parameter import Parameter, get_parameter_value, parameter_value_to_python
from rclpy.parameter_event_handler import ParameterEventHandler
from support import DEADLINE, Bench


def test_declare_and_get(bench):
    node = bench.node()
    assert node.declare_parameter("speed", 1.5).value == 1.5
    assert node.get_parameter("speed").type_ == Parameter.Type.DOUBLE
    assert node.has_parameter("speed")
    with pytest.raises(ParameterAlreadyDeclaredException):
        node.declare_parameter("speed", 2.0)
    with pytest.raises(ParameterNotDeclaredException):
        node.get_parameter("unknown")
    assert node.get_parameter_or("unknown", Parameter("unknown", value=3)).value == 3
    declared = node.declare_parameters("a", [("x", 1), ("y", "two")])
    assert [p.name for p in declared] == ["a.x", "a.y"]
    assert set(node.get_parameters_by_prefix("a")) == {"x", "y"}


@pytest.mark.parametrize(
    "value", [True, 3, 2.5, "text", [True, False], [1, 2], [1.0], ["a", "b"], [b"\x01"]]
)
def test_types(bench, value):
    node = bench.node()
    parameter = node.declare_parameter("p", value)
    assert parameter.value == value
    message = parameter.to_parameter_msg()
    assert parameter_value_to_python(message.value) == value
    assert list(node.get_parameters(["p"]))[0].value == value
    assert node.set_parameters([Parameter("p", value=value)])[0].successful


def test_static_types(bench):
    node = bench.node()
    node.declare_parameter("p", 1)
    result = node.set_parameters([Parameter("p", value="text")])[0]
    assert not result.successful and result.reason
    assert node.get_parameter("p").value == 1
    node.declare_parameter("typed", Parameter.Type.STRING)
    with pytest.raises(ParameterUninitializedException):
        node.get_parameter("typed")
    assert node.get_parameter_or("typed", Parameter("typed", value="x")).value == "x"
    assert node.set_parameters([Parameter("typed", value="set")])[0].successful
    assert node.get_parameter("typed").value == "set"


def test_dynamic_types(bench):
    node = bench.node()
    node.declare_parameter("p", 1, ParameterDescriptor(dynamic_typing=True))
    assert node.set_parameters([Parameter("p", value="text")])[0].successful
    assert node.get_parameter("p").value == "text"


def test_ranges(bench):
    node = bench.node()
    node.declare_parameter(
        "n",
        4,
        ParameterDescriptor(integer_range=[IntegerRange(from_value=0, to_value=10, step=2)]),
    )
    node.declare_parameter(
        "x",
        0.5,
        ParameterDescriptor(
            floating_point_range=[FloatingPointRange(from_value=0.0, to_value=1.0)]
        ),
    )

    def set_to(name, value):
        return node.set_parameters([Parameter(name, value=value)])[0].successful

    assert [set_to("n", v) for v in (0, 10, 6, 5, 12, -2)] == [True] * 3 + [False] * 3
    assert [set_to("x", v) for v in (0.0, 1.0, 0.3, 1.1)] == [True] * 3 + [False]
    with pytest.raises(InvalidParameterValueException):
        node.declare_parameter(
            "bad", 11, ParameterDescriptor(integer_range=[IntegerRange(from_value=0, to_value=1)])
        )


def test_read_only(bench):
    node = bench.node()
    node.declare_parameter("p", 1, ParameterDescriptor(read_only=True))
    assert not node.set_parameters([Parameter("p", value=2)])[0].successful
    assert node.get_parameter("p").value == 1
    with pytest.raises(ParameterImmutableException):
        node.undeclare_parameter("p")


def test_undeclared(bench):
    strict, free = bench.node("strict"), bench.node("free", allow_undeclared_parameters=True)
    with pytest.raises(ParameterNotDeclaredException):
        strict.set_parameters([Parameter("p", value=1)])
    assert free.set_parameters([Parameter("p", value=1)])[0].successful
    assert free.get_parameter("p").value == 1
    assert free.get_parameter("other").type_ == Parameter.Type.NOT_SET
    free.undeclare_parameter("p")
    assert not free.has_parameter("p")


def test_callbacks(bench):
    node, after = bench.node(), []
    node.declare_parameter("p", 1)

    def check(parameters):
        bad = [p for p in parameters if p.value == 13]
        return SetParametersResult(successful=not bad, reason="unlucky" if bad else "")

    node.add_on_set_parameters_callback(check)
    node.add_post_set_parameters_callback(lambda ps: after.extend((p.name, p.value) for p in ps))
    assert node.set_parameters([Parameter("p", value=2)])[0].successful
    refused = node.set_parameters([Parameter("p", value=13)])[0]
    assert (refused.successful, refused.reason) == (False, "unlucky")
    assert (node.get_parameter("p").value, after) == (2, [("p", 2)])
    node.remove_on_set_parameters_callback(check)
    assert node.set_parameters([Parameter("p", value=13)])[0].successful


def test_atomic_change(bench):
    node = bench.node()
    node.declare_parameters("", [("a", 1), ("b", 1)])
    result = node.set_parameters_atomically([Parameter("a", value=2), Parameter("b", value="x")])
    assert not result.successful
    assert node.get_parameter("a").value == 1


def test_overrides(bench):
    node = bench.node(
        parameter_overrides=[Parameter("a", value=5), Parameter("other", value="kept back")]
    )
    assert node.declare_parameter("a", 1).value == 5
    assert not node.has_parameter("other")
    assert node.declare_parameter("b", 1, ignore_override=True).value == 1
    wrong = bench.node("wrong", parameter_overrides=[Parameter("a", value="text")])
    with pytest.raises(InvalidParameterTypeException):
        wrong.declare_parameter("a", 1)


def test_overrides_declare_themselves(bench):
    node = bench.node(
        parameter_overrides=[Parameter("a.b", value=[1, 2])],
        automatically_declare_parameters_from_overrides=True,
    )
    assert node.get_parameter("a.b").value == [1, 2]


def test_parameter_events(bench):
    node, got = bench.node("watched"), []
    watcher = bench.node("watcher")
    watcher.create_subscription(ParameterEvent, "/parameter_events", got.append, 100)
    bench.spin_until(lambda: node.count_subscribers("/parameter_events"))
    bench.spin_until(lambda: watcher.count_publishers("/parameter_events") == 2)

    def change():
        if not node.has_parameter("p"):
            node.declare_parameter("p", 1)
        node.set_parameters([Parameter("p", value=2)])
        bench.executor.spin_once(timeout_sec=0.05)
        return any(e.node == "/watched" and e.changed_parameters for e in got)

    bench.spin_until(change)
    event = next(e for e in got if e.node == "/watched" and e.changed_parameters)
    assert event.changed_parameters[0].name == "p"
    assert event.changed_parameters[0].value.integer_value == 2


def call(bench, node, srv_type, name, **kwargs):
    client = node.create_client(srv_type, f"/test/peer_parameters/{name}")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    response = bench.result(client.call_async(srv_type.Request(**kwargs)))
    node.destroy_client(client)
    return response


def test_services_of_another_process(bench):
    bench.peer("parameters")
    node = bench.node()
    listed = call(bench, node, ListParameters, "list_parameters").result.names
    assert {"speed", "names", "count"} <= set(listed)
    got = call(bench, node, GetParameters, "get_parameters", names=["speed", "names"]).values
    assert [parameter_value_to_python(v) for v in got] == [1.5, ["a", "b"]]
    unknown = call(bench, node, GetParameters, "get_parameters", names=["nonsense"]).values
    assert len(unknown) == 0
    types = call(bench, node, GetParameterTypes, "get_parameter_types", names=["count"]).types
    assert list(types) == [Parameter.Type.INTEGER.value]
    described = call(bench, node, DescribeParameters, "describe_parameters", names=["count"])
    assert (described.descriptors[0].name, described.descriptors[0].type) == ("count", 2)


def test_setting_parameters_of_another_process(bench):
    bench.peer("parameters")
    node = bench.node()
    values = [Parameter("count", value=8), Parameter("speed", value="wrong type")]
    messages = [p.to_parameter_msg() for p in values]
    results = call(bench, node, SetParameters, "set_parameters", parameters=messages).results
    assert [r.successful for r in results] == [True, False]
    one = call(
        bench, node, SetParametersAtomically, "set_parameters_atomically", parameters=messages
    ).result
    assert not one.successful
    undeclared = [Parameter("nonsense", value=1).to_parameter_msg()]
    results = call(bench, node, SetParameters, "set_parameters", parameters=undeclared).results
    assert not results[0].successful
    got = call(bench, node, GetParameters, "get_parameters", names=["count"]).values
    assert got[0].integer_value == 8


@pytest.fixture
def started():
    """Start contexts with command lines."""
    benches = []

    def start(*args):
        benches.append(Bench(args))
        return benches[-1]

    yield start
    for b in benches:
        b.close()


def test_parameters_on_the_command_line(started):
    bench = started("--ros-args", "-p", "n:=3", "-p", "x:=1e-3", "-p", "t:=text",
                    "-p", "l:=[a, b]", "-p", "quoted:='3'", "--param", "other:f:=true")  # fmt: skip
    node = bench.node("main")
    for name, default, value in (
        ("n", 0, 3), ("x", 0.0, 1e-3), ("t", "", "text"), ("l", [""], ["a", "b"]),
        ("quoted", "", "3"), ("f", False, False),
    ):  # fmt: skip
        assert node.declare_parameter(name, default).value == value


def test_parameter_file(started, tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(
        """
/**:
  ros__parameters:
    everywhere: 1
    nested:
      deep:
        value: 2.5
/*/worker:
  ros__parameters: {any_robot: true}
/robot1/worker:
  ros__parameters: {name: first}
robot2:
  worker:
    ros__parameters: {name: second}
/**/deep_node:
  ros__parameters: {found: true}
"""
    )
    bench = started("--ros-args", "--params-file", str(path))

    def declared(namespace, name="worker"):
        node = bench.node(name, namespace=namespace)
        defaults = {
            "everywhere": 0, "nested.deep.value": 0.0, "any_robot": False, "name": "",
            "found": False,
        }  # fmt: skip
        return [node.declare_parameter(n, d).value for n, d in defaults.items()]

    assert declared("/robot1") == [1, 2.5, True, "first", False]
    assert declared("/robot2") == [1, 2.5, True, "second", False]
    assert declared("/") == [1, 2.5, False, "", False]
    assert declared("/a/b", "deep_node") == [1, 2.5, False, "", True]


def test_remapping(started):
    bench = started(
        "--ros-args", "-r", "__ns:=/robot1", "-r", "first:__node:=renamed",
        "-r", "chatter:=/loud", "-r", "second:quiet:=/silent", "--remap", "/abs:=relative",
    )  # fmt: skip
    first, second = bench.node("first"), bench.node("second", namespace="/elsewhere")
    assert (first.get_name(), first.get_namespace()) == ("renamed", "/robot1")
    assert first.get_fully_qualified_name() == "/robot1/renamed"
    assert first.resolve_topic_name("chatter") == "/loud"
    assert first.resolve_topic_name("chatter", only_expand=True) == "/robot1/chatter"
    assert first.resolve_topic_name("quiet") == "/robot1/quiet"
    assert first.resolve_topic_name("/abs") == "/robot1/relative"
    assert first.resolve_service_name("chatter") == "/loud"
    assert (second.get_name(), second.get_namespace()) == ("second", "/robot1")
    assert second.resolve_topic_name("quiet") == "/silent"


def test_arguments_of_one_node(started):
    bench = started("--ros-args", "-r", "topic:=global", "-p", "n:=1")
    node = bench.node(cli_args=["--ros-args", "-r", "topic:=own", "-p", "n:=2"])
    assert node.resolve_topic_name("topic") == "/own"
    assert node.declare_parameter("n", 0).value == 2
    deaf = bench.node("deaf", use_global_arguments=False)
    assert deaf.resolve_topic_name("topic") == "/topic"
    assert deaf.declare_parameter("n", 0).value == 0


def test_other_arguments_are_left_alone(started):
    from rclpy.utilities import remove_ros_args

    args = ["prog", "--mine", "--ros-args", "-r", "a:=b", "--", "rest"]
    assert remove_ros_args(args) == ["prog", "--mine", "rest"]
    bench = started(*args[1:])
    assert bench.node().resolve_topic_name("a") == "/b"


@pytest.mark.parametrize(
    "args",
    [
        ["--ros-args", "-r"],
        ["--ros-args", "-r", "nothing"],
        ["--ros-args", "-p", "n"],
        ["--ros-args", "--params-file", "/no/such/file.yaml"],
        ["--ros-args", "--log-level", "loud"],
        ["--ros-args", "--nonsense"],
    ],
)
def test_wrong_arguments_are_refused(started, args):
    with pytest.raises(Exception) as error:
        started(*args)
    assert str(error.value)


def test_a_parameter_file_may_name_nodes_twice(started, tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(
        """
/**:
  ros__parameters: {first: 1, both: 1}
/**:
  ros__parameters: {second: 2, both: 2}
"""
    )
    node = started("--ros-args", "--params-file", str(path)).node()
    values = [node.declare_parameter(name, 0).value for name in ("first", "second", "both")]
    assert values == [1, 2, 2]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("3", 3), ("2.5", 2.5), ("text", "text"), ("", ""), ("[1, 2]", [1, 2]),
        ("[a, b]", ["a", "b"]), ("[1, a]", "[1, a]"), ("[]", []), ("{", "{"),
    ],
)  # fmt: skip
def test_parameter_values_of_texts(text, value):
    assert parameter_value_to_python(get_parameter_value(text)) == value


def test_callbacks_for_parameters_of_other_nodes(bench):
    watcher, other = bench.node("watcher", namespace="/ns"), bench.node("other", namespace="/ns")
    handler, seen = ParameterEventHandler(watcher), []

    def note(kind):
        return lambda parameter: seen.append((kind, parameter.name, parameter.value.integer_value))

    handler.add_parameter_callback("n", "other", note("first"))
    last = handler.add_parameter_callback("n", "/ns/other", note("last"))
    handler.add_parameter_callback("n", None, note("own"))
    events = []
    everything = handler.add_parameter_event_callback(events.append)
    bench.spin_until(lambda: watcher.count_publishers("/parameter_events") == 2)
    other.declare_parameter("n", 1)
    bench.spin_until(lambda: len(seen) == 2)
    assert seen == [("last", "n", 1), ("first", "n", 1)]
    assert [p.name for p in handler.get_parameters_from_event(events[-1])] == ["n"]
    handler.remove_parameter_callback(last)
    handler.remove_parameter_event_callback(everything)
    count = len(events)
    watcher.declare_parameter("n", 5)
    other.set_parameters([Parameter("n", value=2)])
    bench.spin_until(lambda: len(seen) == 4)
    assert sorted(seen[2:]) == [("first", "n", 2), ("own", "n", 5)]
    assert len(events) == count
    with pytest.raises(RuntimeError):
        handler.remove_parameter_callback(last)
    handler.destroy()
    bench.spin_until(lambda: watcher.count_subscribers("/parameter_events") == 0)


def test_a_new_descriptor(bench):
    node = bench.node()
    node.declare_parameter("n", 7)
    narrow = ParameterDescriptor(
        type=Parameter.Type.INTEGER.value,
        integer_range=[IntegerRange(from_value=0, to_value=5, step=1)],
    )
    with pytest.raises(InvalidParameterValueException):
        node.set_descriptor("n", narrow)
    assert node.get_parameter("n").value == 7
    instead = Parameter("n", value=5).get_parameter_value()
    assert node.set_descriptor("n", narrow, instead).integer_value == 5
    assert node.describe_parameter("n").integer_range == narrow.integer_range
    assert not node.set_parameters([Parameter("n", value=6)])[0].successful
