"""A subscription delivers messages in order, and does not block other callbacks of its node."""

import threading

import pytest
from fleet_ros.receiving import Receiving, subscribe
from fleet_testing import eventually
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Int32

RELIABLE = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)


@pytest.fixture
def ends(context):
    """Yield a sending node and a receiving node; the receiving node has a separate executor."""
    sender, receiver = Node('sender', context=context), Node('receiver', context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(receiver)
    yield sender, receiver, lambda: executor.spin_once(timeout_sec=0.1)
    executor.remove_node(receiver)
    executor.shutdown()
    sender.destroy_node()
    receiver.destroy_node()


def meet(publisher, subscription, step):
    eventually(lambda: publisher.get_subscription_count() and subscription.get_publisher_count(),
               lambda: 'they meet', step)


def test_subscription_passes_on_all_arrived_messages_in_order(ends):
    sender, receiver, step = ends
    got = []
    subscription = subscribe(receiver, Int32, 'numbers', lambda m: got.append(m.data), RELIABLE)
    publisher = sender.create_publisher(Int32, 'numbers', RELIABLE)
    meet(publisher, subscription, step)
    for start in (0, 90):
        for number in range(start, start + 90):
            publisher.publish(Int32(data=number))
        eventually(lambda end=start + 90: len(got) >= end, lambda: f'{len(got)} came', step)
    assert got == list(range(180))


def test_a_flood_leaves_the_others_of_the_node_their_turn(ends):
    """Other callbacks of the node run although each handled message causes the next message."""
    sender, receiver, step = ends
    publisher = sender.create_publisher(Int32, 'numbers', RELIABLE)
    got, turns = [], []

    def again(message):
        got.append(message.data)
        publisher.publish(message)

    subscription = subscribe(receiver, Int32, 'numbers', again, RELIABLE)
    guard = receiver.create_guard_condition(lambda: turns.append(len(got)))
    meet(publisher, subscription, step)
    for number in range(10):
        publisher.publish(Int32(data=number))
    eventually(lambda: len(got) > 100, lambda: f'{len(got)} came', step)
    guard.trigger()
    eventually(lambda: turns, lambda: 'the guard has its turn', step)


def test_a_callback_may_destroy_its_subscription(ends):
    sender, receiver, step = ends
    got = []

    def once(message):
        got.append(message.data)
        receiver.destroy_subscription(subscription)

    subscription = subscribe(receiver, Int32, 'numbers', once, RELIABLE)
    publisher = sender.create_publisher(Int32, 'numbers', RELIABLE)
    meet(publisher, subscription, step)
    for number in range(10):
        publisher.publish(Int32(data=number))
    eventually(lambda: got, lambda: 'one came', step)
    for _ in range(3):
        step()
    assert got == [0]


def test_an_error_of_the_callback_reaches_who_spins(ends):
    sender, receiver, step = ends

    def fail(message):
        raise ValueError(message.data)

    subscription = subscribe(receiver, Int32, 'numbers', fail, RELIABLE)
    publisher = sender.create_publisher(Int32, 'numbers', RELIABLE)
    meet(publisher, subscription, step)
    publisher.publish(Int32(data=7))
    with pytest.raises(ValueError, match='7'):
        eventually(lambda: False, lambda: 'it raises', step)


def test_a_thread_receives_in_order_beside_the_executor(ends):
    """The thread receives the messages; the node's executor, which also spins, does not."""
    sender, receiver, step = ends
    got, threads = [], set()

    def on_message(message):
        got.append(message.data)
        threads.add(threading.current_thread().name)

    receiving = Receiving(receiver, {'numbers': (Int32, on_message)}, RELIABLE)
    try:
        publisher = sender.create_publisher(Int32, 'numbers', RELIABLE)
        eventually(lambda: publisher.get_subscription_count(), lambda: 'they meet', step)
        for start in (0, 90):
            for number in range(start, start + 90):
                publisher.publish(Int32(data=number))
            eventually(lambda end=start + 90: len(got) >= end, lambda: f'{len(got)} came', step)
    finally:
        receiving.close()
    assert got == list(range(180))
    assert threads == {'receiving'}


def test_several_topics_share_the_thread_until_it_is_closed(ends):
    sender, receiver, step = ends
    got = []
    receiving = Receiving(receiver, {name: (Int32, lambda m, name=name: got.append((name, m.data)))
                                     for name in ('a', 'b')}, RELIABLE)
    publishers = [sender.create_publisher(Int32, name, RELIABLE) for name in ('a', 'b')]
    eventually(lambda: all(p.get_subscription_count() for p in publishers), lambda: 'they meet',
               step)
    for publisher in publishers:
        publisher.publish(Int32(data=1))
    eventually(lambda: len(got) == 2, lambda: f'{got} came', step)
    assert sorted(got) == [('a', 1), ('b', 1)]
    receiving.close()
    eventually(lambda: publishers[0].get_subscription_count() == 0, lambda: 'they part', step)
