"""Whole programs: signals, exits, and what processes see of each other."""

import signal

import pytest
from rcl_interfaces.msg import Log
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import String
from support import EMBEDDED_PEER


def lost_race(err):
    """The real rclpy can find its context gone inside rcl_wait, where it expects that least."""
    return not EMBEDDED_PEER and "rcl_shutdown() was called" in err


def test_ctrl_c_ends_cleanly(bench):
    code, out, err = bench.peer("idle").interrupt(signal.SIGINT)
    assert code == 0 or lost_race(err), err
    assert "clean" in out


def test_sigterm_ends_cleanly(bench):
    # Between two callbacks spin() just returns; asleep it raises. A program must expect both.
    code, out, err = bench.peer("idle").interrupt(signal.SIGTERM)
    assert code == 0 or lost_race(err), err
    assert "clean" in out


def test_unhandled_ctrl_c(bench):
    code, out, err = bench.peer("bare:idle").interrupt(signal.SIGINT)
    assert code in (-signal.SIGINT, 1)
    assert "KeyboardInterrupt" in err or "ExternalShutdownException" in err or lost_race(err)
    assert "spin returned" not in out


def test_unhandled_sigterm(bench):
    code, out, err = bench.peer("bare:idle").interrupt(signal.SIGTERM)
    if code == 0:  # it came between two callbacks
        assert "spin returned" in out
    else:
        assert code == 1
        assert "ExternalShutdownException" in err or lost_race(err)


def test_error_in_a_callback_ends_the_program(bench):
    peer = bench.peer("callback_error")
    peer.process.wait(30)
    assert peer.process.returncode == 1
    assert "ZeroDivisionError" in peer.process.stderr.read()


def test_shutdown_ends_spin_without_an_exception(bench):
    peer = bench.peer("idle")
    peer.process.stdin.close()  # the peer calls try_shutdown in a thread
    peer.process.stdin = None
    assert peer.process.wait(30) == 0
    assert "ended by" not in peer.process.stdout.read()


def test_nodes_see_each_other(bench):
    peer = bench.peer("server", "--ros-args", "-r", "__node:=other")
    node = bench.node("me", namespace="/here")

    def names():
        return set(node.get_node_names_and_namespaces())

    bench.spin_until(lambda: {("me", "/here"), ("other", "/test")} <= names())

    def services():
        try:
            return dict(node.get_service_names_and_types_by_node("other", "/test"))
        except RuntimeError:
            return {}

    bench.spin_until(lambda: services().get("/test/switch") == ["std_srvs/srv/SetBool"])
    peer.interrupt()
    bench.spin_until(lambda: ("other", "/test") not in names())


def test_topics_of_others(bench):
    bench.peer("echo")
    node = bench.node("me")
    node.create_publisher(String, "/test/say", 10)

    def types():
        return dict(node.get_topic_names_and_types())

    bench.spin_until(lambda: types().get("/test/echo_bytes") == ["std_msgs/msg/UInt8MultiArray"])
    bench.spin_until(lambda: node.count_subscribers("/test/say") == 1)
    bench.spin_until(lambda: node.count_publishers("/test/say") == 1)

    def of_peer(query):
        try:
            return dict(query("peer_echo", "/test"))
        except RuntimeError:
            return {}  # its endpoints are known before its name is

    kind = ["std_msgs/msg/String"]
    published, subscribed = (
        node.get_publisher_names_and_types_by_node,
        node.get_subscriber_names_and_types_by_node,
    )
    bench.spin_until(lambda: of_peer(published).get("/test/echo") == kind)
    bench.spin_until(lambda: of_peer(subscribed).get("/test/say") == kind)
    with pytest.raises(RuntimeError):
        node.get_publisher_names_and_types_by_node("nobody", "/")


def test_log_messages_of_another_process(bench):
    peer = bench.peer("logger")
    node, got = bench.node(namespace="/test"), []
    qos = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    node.create_subscription(Log, "/rosout", got.append, qos)
    publisher = node.create_publisher(String, "log", 10)
    bench.spin_until(publisher.get_subscription_count)

    def said():
        publisher.publish(String(data="look {here}"))
        for _ in range(5):
            bench.executor.spin_once(timeout_sec=0.02)
        return any(m.msg == "look {here}" for m in got)

    bench.spin_until(said)
    message = next(m for m in got if m.msg == "look {here}")
    assert (message.name, message.level) == ("test.peer_logger", 30)
    _, _, err = peer.interrupt()
    line = next(x for x in err.splitlines() if "look" in x)
    assert line.startswith("[WARN] [")
    assert line.endswith("] [test.peer_logger]: look {here}")
