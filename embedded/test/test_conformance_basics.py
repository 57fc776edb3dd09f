"""Contexts, time, logging, names."""

import pytest
import rclpy
from rclpy.clock import Clock, ClockType, ROSClock
from rclpy.context import Context
from rclpy.duration import Duration
from rclpy.exceptions import (
    InvalidNamespaceException,
    InvalidNodeNameException,
    NotInitializedException,
)
from rclpy.logging import LoggingSeverity, get_logger, set_logger_level
from rclpy.node import Node
from rclpy.time import Time
from rclpy.validate_full_topic_name import validate_full_topic_name
from rclpy.validate_namespace import validate_namespace
from rclpy.validate_node_name import validate_node_name
from rclpy.validate_topic_name import validate_topic_name


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
        logger.info(f"throttle {i}", throttle_duration_sec=1000.0)
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
