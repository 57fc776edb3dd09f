"""Contexts, time, logging, names."""

import threading
import time

import pytest
import rclpy
from rclpy.clock import Clock, ClockChange, ClockType, JumpThreshold, ROSClock
from rclpy.context import Context
from rclpy.duration import Duration
from rclpy.exceptions import (
    InvalidNamespaceException,
    InvalidNodeNameException,
    NotInitializedException,
)
from rclpy.expand_topic_name import expand_topic_name
from rclpy.logging import LoggingSeverity, get_logger, set_logger_level
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    LivelinessPolicy,
    QoSCompatibility,
    QoSPresetProfiles,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
    qos_profile_sensor_data,
)
from rclpy.time import Time
from rclpy.validate_full_topic_name import validate_full_topic_name
from rclpy.validate_namespace import validate_namespace
from rclpy.validate_node_name import validate_node_name
from rclpy.validate_topic_name import validate_topic_name
from support import DEADLINE


def test_contexts():
    context = Context()
    assert not context.ok()
    with pytest.raises(NotInitializedException):
        Node("n", context=context)
    rclpy.init(args=[], context=context)
    assert context.ok()
    with pytest.raises(RuntimeError):
        rclpy.init(args=[], context=context)
    called = []
    context.on_shutdown(lambda: called.append(1))
    rclpy.shutdown(context=context)
    assert not context.ok() and called == [1]
    with pytest.raises(RuntimeError):
        rclpy.shutdown(context=context)
    rclpy.try_shutdown(context=context)


def test_default_context_can_start_again():
    for _ in range(2):
        rclpy.init(args=[])
        assert rclpy.ok()
        node = rclpy.create_node("n")
        calls = []
        node.create_timer(0.001, lambda calls=calls: calls.append(1))
        while not calls:
            rclpy.spin_once(node, timeout_sec=1)
        node.destroy_node()
        rclpy.shutdown()
        assert not rclpy.ok()


def test_domains_are_separate():
    a, b = Context(), Context()
    rclpy.init(args=[], context=a, domain_id=101)
    rclpy.init(args=[], context=b, domain_id=102)
    assert (a.get_domain_id(), b.get_domain_id()) == (101, 102)
    for c in (a, b):
        c.shutdown()


def test_destroying_after_shutdown(bench):
    from std_msgs.msg import String

    node = bench.node()
    publisher = node.create_publisher(String, "topic", 10)
    node.create_subscription(String, "topic", lambda m: None, 10)
    bench.context.shutdown()
    with pytest.raises(Exception):
        publisher.publish(String())
    node.destroy_node()


def test_duration():
    assert Duration(seconds=1, nanoseconds=5).nanoseconds == 1_000_000_005
    assert Duration(seconds=1) > Duration(nanoseconds=999_999_999)
    message = Duration(seconds=2, nanoseconds=3).to_msg()
    assert (message.sec, message.nanosec) == (2, 3)
    assert Duration.from_msg(message) == Duration(seconds=2, nanoseconds=3)


def test_time():
    a = Time(seconds=1, nanoseconds=500, clock_type=ClockType.ROS_TIME)
    b = a + Duration(seconds=1)
    assert b.seconds_nanoseconds() == (2, 500)
    assert b - a == Duration(seconds=1)
    assert b - Duration(seconds=1) == a and a < b
    assert Time.from_msg(a.to_msg()) == a
    with pytest.raises(TypeError):
        _ = a < Time(seconds=1, clock_type=ClockType.STEADY_TIME)
    with pytest.raises(ValueError):
        Time(seconds=-1)


def test_clocks(bench):
    system, steady = Clock(), Clock(clock_type=ClockType.STEADY_TIME)
    assert system.clock_type == ClockType.SYSTEM_TIME
    assert isinstance(Clock(clock_type=ClockType.ROS_TIME), ROSClock)
    assert system.now().nanoseconds > 1_600_000_000_000_000_000
    first = steady.now()
    assert steady.now() >= first
    assert bench.node().get_clock().clock_type == ClockType.ROS_TIME
    assert steady.sleep_for(Duration(nanoseconds=1000), context=bench.context)


def test_simulated_time(bench):
    from rclpy.parameter import Parameter
    from rosgraph_msgs.msg import Clock as ClockMessage

    node, calls = bench.node(parameter_overrides=[Parameter("use_sim_time", value=True)]), []
    source = bench.node("source").create_publisher(ClockMessage, "/clock", 10)
    node.create_timer(10.0, lambda: calls.append(node.get_clock().now().nanoseconds))
    bench.spin_until(source.get_subscription_count)
    seconds = [100]

    def advance():
        seconds[0] += 4
        message = ClockMessage()
        message.clock.sec = seconds[0]
        source.publish(message)
        bench.executor.spin_once(timeout_sec=0.05)
        return len(calls) >= 2

    bench.spin_until(advance)
    assert 100_000_000_000 < calls[0] < calls[1] < 1_000_000_000_000


def test_log_levels(capfd):
    logger = get_logger("test_levels")
    logger.set_level(LoggingSeverity.WARN)
    assert logger.get_effective_level() == LoggingSeverity.WARN
    assert not logger.info("hidden")
    assert logger.warning("shown {}")
    child = logger.get_child("child")
    assert child.get_effective_level() == LoggingSeverity.WARN
    set_logger_level("test_levels.child", LoggingSeverity.DEBUG)
    assert child.debug("also shown")
    err = capfd.readouterr().err
    assert "hidden" not in err
    assert "[WARN] [" in err and "] [test_levels]: shown {}" in err
    assert "[DEBUG] [" in err and "] [test_levels.child]: also shown" in err


def test_one_call_logs_with_one_severity():
    logger = get_logger("test_one_call")

    def say(severity):
        logger.log("a line", severity)

    say(LoggingSeverity.INFO)
    say(LoggingSeverity.INFO)
    with pytest.raises(ValueError, match="severity"):
        say(LoggingSeverity.ERROR)


def test_log_filters(capfd):
    logger = get_logger("test_filters")
    for i in range(3):
        logger.info(f"once {i}", once=True)
        logger.info(f"skip {i}", skip_first=True)
        logger.info(f"throttle {i}", throttle_duration_sec=1e9)   # longer than it runs
    with pytest.raises(TypeError):
        logger.info("x", nonsense=True)
    err = capfd.readouterr().err
    assert [f"once {i}" in err for i in range(3)] == [True, False, False]
    assert [f"skip {i}" in err for i in range(3)] == [False, True, True]
    assert [f"throttle {i}" in err for i in range(3)] == [True, False, False]


def test_names():
    assert validate_node_name("robot_1")
    for bad in ("", "a-b", "a/b", "1a"):
        with pytest.raises(InvalidNodeNameException):
            validate_node_name(bad)
    assert validate_namespace("/a/b")
    for bad in ("", "a", "/a/", "/a//b", "/1a"):
        with pytest.raises(InvalidNamespaceException):
            validate_namespace(bad)
    assert validate_topic_name("~/a/{node}")
    assert validate_full_topic_name("/a/b")
    with pytest.raises(Exception):
        validate_full_topic_name("a")


def test_bad_node_names(bench):
    with pytest.raises(InvalidNodeNameException):
        bench.node("a.b")
    with pytest.raises(InvalidNamespaceException):
        bench.node("a", namespace="/x//y")
    assert bench.node("a", namespace="x").get_namespace() == "/x"


def test_sleep_before_init_is_refused():
    with pytest.raises(NotInitializedException):
        Clock().sleep_for(Duration(nanoseconds=1), context=Context())


def test_callbacks_for_jumps_of_simulated_time(bench):
    from rclpy.parameter import Parameter
    from rosgraph_msgs.msg import Clock as ClockMessage

    node, seen = bench.node(), []
    clock = node.get_clock()
    source = bench.node("source").create_publisher(ClockMessage, "/clock", 10)
    threshold = JumpThreshold(min_forward=None, min_backward=Duration(seconds=-5))
    handle = clock.create_jump_callback(
        threshold, pre_callback=lambda: seen.append("before"), post_callback=seen.append
    )
    node.set_parameters([Parameter("use_sim_time", value=True)])
    assert seen[0] == "before"
    assert seen[1].clock_change == ClockChange.ROS_TIME_ACTIVATED
    bench.spin_until(source.get_subscription_count)

    def show(seconds):
        source.publish(ClockMessage(clock=Time(seconds=seconds).to_msg()))
        bench.spin_until(
            lambda: clock.now() == Time(seconds=seconds, clock_type=ClockType.ROS_TIME)
        )

    for seconds in (100, 200, 196):
        show(seconds)
    assert len(seen) == 2  # forward does not count, nor four seconds back
    show(190)
    assert seen[2] == "before"
    assert seen[3].clock_change == ClockChange.ROS_TIME_NO_CHANGE
    assert seen[3].delta == Duration(seconds=-6)
    handle.unregister()
    show(100)
    assert len(seen) == 4


def test_a_sleep_ends_when_simulated_time_begins(bench):
    from rclpy.parameter import Parameter

    node, results = bench.node(), []
    clock = node.get_clock()
    entered = threading.Event()

    def sleep():
        until = clock.now() + Duration(seconds=1000)
        entered.set()
        results.append(clock.sleep_until(until, context=bench.context))

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    assert entered.wait(DEADLINE)
    end = time.monotonic() + DEADLINE
    while not results and time.monotonic() < end:  # it may not have fallen asleep yet
        for simulated in (True, False):
            node.set_parameters([Parameter("use_sim_time", value=simulated)])
        thread.join(0.01)
    assert results == [False]


@pytest.mark.parametrize(
    "arguments", [{"min_forward": Duration()}, {"min_backward": Duration()}, {}]
)
def test_jump_thresholds_that_make_no_sense(arguments):
    wanted = {"min_forward": None, "min_backward": None, "on_clock_change": False, **arguments}
    with pytest.raises(ValueError):
        JumpThreshold(**wanted)


def test_qos_presets_are_profiles():
    assert QoSPresetProfiles.SENSOR_DATA.value == qos_profile_sensor_data
    assert QoSPresetProfiles.get_from_short_key("sensor_data") == qos_profile_sensor_data
    assert "parameter_events" in QoSPresetProfiles.short_keys()


@pytest.mark.parametrize(
    ("offered", "requested", "verdict"),
    [
        ({}, {}, QoSCompatibility.OK),
        ({"reliability": "RELIABLE"}, {"reliability": "BEST_EFFORT"}, QoSCompatibility.OK),
        ({"reliability": "BEST_EFFORT"}, {"reliability": "RELIABLE"}, QoSCompatibility.ERROR),
        ({"durability": "VOLATILE"}, {"durability": "TRANSIENT_LOCAL"}, QoSCompatibility.ERROR),
        ({"liveliness": "AUTOMATIC"}, {"liveliness": "MANUAL_BY_TOPIC"}, QoSCompatibility.ERROR),
        ({}, {"deadline": 1}, QoSCompatibility.ERROR),
        ({"deadline": 2}, {"deadline": 1}, QoSCompatibility.ERROR),
        ({"deadline": 1}, {"deadline": 2}, QoSCompatibility.OK),
        ({"lease": 2}, {"lease": 1}, QoSCompatibility.ERROR),
        ({"reliability": "SYSTEM_DEFAULT"}, {"reliability": "RELIABLE"}, QoSCompatibility.WARNING),
        ({"durability": "VOLATILE"}, {"durability": "SYSTEM_DEFAULT"}, QoSCompatibility.WARNING),
        ({"reliability": "SYSTEM_DEFAULT"}, {"reliability": "BEST_EFFORT"}, QoSCompatibility.OK),
    ],
)  # fmt: skip
def test_whether_profiles_fit(offered, requested, verdict):
    enums = {
        "reliability": ReliabilityPolicy, "durability": DurabilityPolicy,
        "liveliness": LivelinessPolicy,
    }  # fmt: skip

    def profile(wish):
        # All policies are known unless the case says otherwise.
        made = QoSProfile(
            depth=1, liveliness=LivelinessPolicy.AUTOMATIC, durability=DurabilityPolicy.VOLATILE
        )
        for name, value in wish.items():
            if name in enums:
                setattr(made, name, enums[name][value])
            elif name == "lease":
                made.liveliness_lease_duration = Duration(seconds=value)
            else:
                made.deadline = Duration(seconds=value)
        return made

    found, reason = qos_check_compatible(profile(offered), profile(requested))
    assert found == verdict
    assert bool(reason) == (verdict != QoSCompatibility.OK)


def test_names_that_do_not_expand():
    assert expand_topic_name("a/{node}", "n", "/ns") == "/ns/a/n"
    for name, node, namespace in (
        ("a/{nonsense}", "n", "/ns"), ("a?", "n", "/ns"), ("a", "n?", "/ns"), ("a", "n", "ns"),
        ("a", "n", ""),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            expand_topic_name(name, node, namespace)


def test_names_to_look_up_are_checked(bench):
    node = bench.node()
    for wrong, error in ((1, TypeError), ("13", ValueError)):
        with pytest.raises(error):
            node.count_publishers(wrong)
        with pytest.raises(error):
            node.get_subscriptions_info_by_topic(wrong)


def test_one_call_logs_with_one_filter_and_name():
    logger = get_logger("filters_of_one_call")
    with pytest.raises(ValueError):
        for period in (1.0, 2.0):
            logger.info("text", throttle_duration_sec=period)
    with pytest.raises(ValueError):
        for name in ("a", "b"):
            logger.info("text", name=name)
