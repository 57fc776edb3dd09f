"""Topics, in one process and between two."""

import threading
import time

import pytest
from rclpy.duration import Duration, Infinite
from rclpy.exceptions import InvalidTopicNameException
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    InvalidQoSProfileException,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
    qos_profile_sensor_data,
    qos_profile_system_default,
)
from rclpy.serialization import deserialize_message, serialize_message
from rclpy.topic_endpoint_info import TopicEndpointInfo, TopicEndpointTypeEnum
from rclpy.type_hash import TypeHash
from rclpy.wait_for_message import wait_for_message
from std_msgs.msg import Bool, String, UInt8MultiArray
from support import DEADLINE, EMBEDDED, Bench

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def test_publish_and_receive(bench):
    node, got = bench.node(), []
    node.create_subscription(String, "topic", lambda m: got.append(m.data), 10)
    publisher = node.create_publisher(String, "topic", 10)
    bench.spin_until(publisher.get_subscription_count)
    for i in range(5):
        publisher.publish(String(data=str(i)))
    bench.spin_until(lambda: len(got) == 5)
    assert got == list("01234")


def test_wrong_type_is_refused(bench):
    publisher = bench.node().create_publisher(String, "topic", 10)
    with pytest.raises(TypeError):
        publisher.publish(Bool())
    with pytest.raises(TypeError):
        publisher.publish("text")


def test_names_and_namespaces(bench):
    node = bench.node("n", namespace="/robot1")
    assert node.create_publisher(String, "a", 10).topic_name == "/robot1/a"
    assert node.create_publisher(String, "/a", 10).topic_name == "/a"
    assert node.create_publisher(String, "~/a", 10).topic_name == "/robot1/n/a"
    assert node.create_subscription(String, "b", lambda m: None, 10).topic_name == "/robot1/b"
    assert node.resolve_topic_name("{node}/x") == "/robot1/n/x"
    for bad in ("a b", "a//b", "a/", "1a", "a~", "", "{what}"):
        with pytest.raises((InvalidTopicNameException, RuntimeError, ValueError)):
            node.create_publisher(String, bad, 10)


def test_raw_subscription_and_publishing_bytes(bench):
    node, got = bench.node(), []
    node.create_subscription(String, "topic", got.append, 10, raw=True)
    publisher = node.create_publisher(String, "topic", 10)
    bench.spin_until(publisher.get_subscription_count)
    publisher.publish(serialize_message(String(data="raw")))
    bench.spin_until(lambda: got)
    assert isinstance(got[0], bytes)
    assert deserialize_message(got[0], String).data == "raw"


def test_callback_with_message_info(bench):
    node, got = bench.node(), []

    def callback(message, info):
        got.append((message.data, info["source_timestamp"]))

    node.create_subscription(String, "topic", callback, 10)
    publisher = node.create_publisher(String, "topic", 10)
    bench.spin_until(publisher.get_subscription_count)
    publisher.publish(String(data="x"))
    bench.spin_until(lambda: got)
    assert got[0][0] == "x"
    assert got[0][1] > 1_600_000_000_000_000_000


def test_late_joiner_gets_latched_message(bench):
    node, got = bench.node(), []
    publisher = node.create_publisher(String, "latched", LATCHED)
    publisher.publish(String(data="old"))
    publisher.publish(String(data="new"))
    node.create_subscription(String, "latched", lambda m: got.append(m.data), LATCHED)
    bench.spin_until(lambda: got)
    assert got == ["new"]


def test_volatile_subscription_gets_nothing_from_before(bench):
    node, got = bench.node(), []
    publisher = node.create_publisher(String, "latched", LATCHED)
    publisher.publish(String(data="old"))
    node.create_subscription(String, "latched", lambda m: got.append(m.data), 1)
    bench.spin_until(publisher.get_subscription_count)
    publisher.publish(String(data="new"))
    bench.spin_until(lambda: got)
    assert got == ["new"]


def test_history_depth_limits_what_waits(bench):
    node, got = bench.node(), []
    node.create_subscription(String, "topic", lambda m: got.append(m.data), 3)
    publisher = node.create_publisher(String, "topic", 10)
    bench.spin_until(publisher.get_subscription_count)
    for i in range(10):
        publisher.publish(String(data=str(i)))
    bench.spin_until(lambda: got and got[-1] == "9")
    assert got == ["7", "8", "9"]


def test_incompatible_qos_does_not_match(bench):
    node, got = bench.node(), []
    node.create_subscription(String, "topic", got.append, 10)  # wants reliable
    node.create_subscription(String, "topic", got.append, LATCHED)  # wants transient local
    best_effort = node.create_publisher(String, "topic", qos_profile_sensor_data)
    reliable = node.create_publisher(String, "topic", 10)
    bench.spin_until(lambda: reliable.get_subscription_count() == 1)
    assert best_effort.get_subscription_count() == 0


def test_best_effort_subscription_accepts_everything(bench):
    node = bench.node()
    node.create_subscription(String, "topic", lambda m: None, qos_profile_sensor_data)
    best_effort = node.create_publisher(String, "topic", qos_profile_sensor_data)
    reliable = node.create_publisher(String, "topic", 10)
    bench.spin_until(best_effort.get_subscription_count)
    bench.spin_until(reliable.get_subscription_count)


def test_qos_profiles():
    profile = QoSProfile(depth=7)
    assert profile.history == HistoryPolicy.KEEP_LAST
    assert profile.reliability == ReliabilityPolicy.RELIABLE
    assert profile.durability == DurabilityPolicy.VOLATILE
    assert profile == QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=7)
    assert profile != QoSProfile(depth=8)
    assert qos_profile_sensor_data.reliability == ReliabilityPolicy.BEST_EFFORT
    assert qos_profile_sensor_data.depth == 5
    assert qos_profile_system_default.reliability == ReliabilityPolicy.SYSTEM_DEFAULT
    for wrong in ({}, {"history": HistoryPolicy.KEEP_LAST}):
        with pytest.raises(InvalidQoSProfileException):
            QoSProfile(**wrong)
    with pytest.raises(AssertionError):
        QoSProfile(depth=1, nonsense=2)


def test_destroyed_subscription_gets_nothing(bench):
    node, got = bench.node(), []
    subscription = node.create_subscription(String, "topic", got.append, 10)
    kept = []
    node.create_subscription(String, "topic", kept.append, 10)
    publisher = node.create_publisher(String, "topic", 10)
    bench.spin_until(lambda: publisher.get_subscription_count() == 2)
    assert node.destroy_subscription(subscription)
    assert not node.destroy_subscription(subscription)
    bench.spin_until(lambda: publisher.get_subscription_count() == 1)
    publisher.publish(String(data="x"))
    bench.spin_until(lambda: kept)
    assert not got


def test_publisher_waits_for_acknowledgement(bench):
    node = bench.node()
    node.create_subscription(String, "topic", lambda m: None, 10)
    publisher = node.create_publisher(String, "topic", 10)
    bench.spin_until(publisher.get_subscription_count)
    publisher.publish(String(data="x"))
    assert publisher.wait_for_all_acked()


def test_two_processes(bench):
    bench.peer("echo")
    node, got = bench.node(namespace="/test"), []
    publisher = node.create_publisher(String, "say", 10)
    subscription = node.create_subscription(String, "echo", lambda m: got.append(m.data), 10)
    bench.spin_until(publisher.get_subscription_count)
    bench.spin_until(lambda: node.count_publishers(subscription.topic_name))
    for i in range(3):
        text = f"message {i} äöü"
        # The echo's publisher may not have discovered us yet: say it until it comes back.
        while text not in got:
            publisher.publish(String(data=text))
            for _ in range(10):
                bench.executor.spin_once(timeout_sec=0.02)
                if text in got:
                    break


def test_large_message_between_processes(bench):
    bench.peer("echo")
    node, got = bench.node(namespace="/test"), []
    publisher = node.create_publisher(UInt8MultiArray, "say_bytes", 10)
    node.create_subscription(UInt8MultiArray, "echo_bytes", lambda m: got.append(m.data), 10)
    bench.spin_until(publisher.get_subscription_count)
    bench.spin_until(lambda: node.count_publishers("/test/echo_bytes"))
    data = bytes(range(256)) * 4096  # 1 MiB
    message = UInt8MultiArray(data=data)
    for _ in range(100):
        publisher.publish(message)
        for _ in range(10):
            bench.executor.spin_once(timeout_sec=0.05)
            if got:
                break
        if got:
            break
    assert got[0].tobytes() == data


def test_late_joiner_in_another_process(bench):
    bench.peer("latch")
    node, got = bench.node(namespace="/test"), []
    node.create_subscription(String, "latched", lambda m: got.append(m.data), LATCHED)
    bench.spin_until(lambda: got)
    assert got == ["from before"]


def test_wait_for_message(bench):
    node = bench.node()
    node.create_publisher(String, "latched", LATCHED).publish(String(data="here"))
    found, message = wait_for_message(
        String, node, "latched", qos_profile=LATCHED, time_to_wait=DEADLINE
    )
    assert (found, message.data) == (True, "here")
    assert wait_for_message(String, node, "nobody", time_to_wait=0.01) == (False, None)
    bench.spin_until(lambda: node.count_subscribers("nobody") == 0)


@pytest.mark.skipif(not EMBEDDED, reason="the real one hears of signals only, and waits on")
def test_wait_for_message_ends_with_the_context():
    made, results = Bench(), []
    node = made.node()
    thread = threading.Thread(
        target=lambda: results.append(wait_for_message(String, node, "nobody")), daemon=True
    )
    thread.start()
    end = time.monotonic() + DEADLINE
    while not node.count_subscribers("nobody"):
        assert time.monotonic() < end
    made.context.shutdown()
    thread.join(DEADLINE)
    made.close()
    assert results == [(False, None)]


def test_what_is_known_of_publishers_and_subscriptions(bench):
    node = bench.node("n", namespace="/robot1")
    qos = QoSProfile(
        depth=3,
        reliability=ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
        deadline=Duration(seconds=2),
        lifespan=Duration(seconds=3),
        liveliness=LivelinessPolicy.MANUAL_BY_TOPIC,
        liveliness_lease_duration=Duration(seconds=4),
    )
    node.create_publisher(String, "topic", qos)
    node.create_subscription(String, "topic", lambda m: None, 10)

    def owners(infos):
        return [(info.node_name, info.node_namespace) for info in infos]

    # Whose an endpoint is becomes known a moment later.
    for find in (node.get_publishers_info_by_topic, node.get_subscriptions_info_by_topic):
        bench.spin_until(lambda find=find: owners(find("/robot1/topic")) == [("n", "/robot1")])
    [publisher] = node.get_publishers_info_by_topic("/robot1/topic")
    assert publisher.topic_type == "std_msgs/msg/String"
    assert publisher.endpoint_type == TopicEndpointTypeEnum.PUBLISHER
    assert str(publisher.topic_type_hash).startswith("RIHS01_df668c740482bbd4")
    assert any(publisher.endpoint_gid)
    seen = publisher.qos_profile
    for policy in ("reliability", "durability", "deadline", "lifespan", "liveliness"):
        assert getattr(seen, policy) == getattr(qos, policy)
    assert seen.liveliness_lease_duration == qos.liveliness_lease_duration
    assert "Reliability: BEST_EFFORT" in str(publisher)
    [subscription] = node.get_subscriptions_info_by_topic("topic")
    assert subscription.endpoint_type == TopicEndpointTypeEnum.SUBSCRIPTION
    assert subscription.qos_profile.reliability == ReliabilityPolicy.RELIABLE
    assert subscription.qos_profile.deadline == Infinite
    assert subscription.topic_type_hash == publisher.topic_type_hash


def test_an_endpoint_of_which_nothing_is_known():
    info = TopicEndpointInfo(node_name="n")
    assert info == TopicEndpointInfo(node_name="n") != TopicEndpointInfo()
    assert str(info.topic_type_hash) == "INVALID"
    assert str(TypeHash(1, bytes(range(32)))).endswith("1d1e1f")
