"""An alarm calls its callback once, at the time that was set last.

The callback runs in the executor or in a separate thread.
"""

import math
import threading
import time

import pytest
import rclpy
from fleet_ros.alarm import Alarm
from fleet_testing import LIMIT
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node


class Bell:
    """A node with an alarm."""

    def __init__(self):
        self.context = Context()
        rclpy.init(args=[], context=self.context)
        self.node = Node('bell', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.rung = []
        self.alarm = Alarm(lambda: self.rung.append(time.monotonic()), self.node)

    def spin(self, done, deadline=LIMIT):
        end = time.monotonic() + deadline
        while not done() and time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.01)


@pytest.fixture
def bell():
    bell = Bell()
    yield bell
    bell.alarm.close()
    bell.executor.shutdown()
    bell.node.destroy_node()
    rclpy.shutdown(context=bell.context)


def test_alarm_rings_once_and_not_before_its_time(bell):
    at = time.monotonic() + 0.05
    bell.alarm.set(at)
    bell.spin(lambda: bell.rung)
    assert len(bell.rung) == 1 and bell.rung[0] >= at
    bell.spin(lambda: len(bell.rung) > 1, deadline=0.1)
    assert len(bell.rung) == 1


def test_an_earlier_time_replaces_a_later_one_and_the_other_way_round(bell):
    bell.alarm.set(time.monotonic() + 3600)
    bell.alarm.set(time.monotonic())
    bell.spin(lambda: bell.rung)
    assert len(bell.rung) == 1
    bell.alarm.set(time.monotonic() + 0.02)
    bell.alarm.set(math.inf)
    bell.spin(lambda: len(bell.rung) > 1, deadline=0.1)
    assert len(bell.rung) == 1


def test_alarm_does_not_ring_after_close(bell):
    bell.alarm.set(time.monotonic() + 0.02)
    bell.alarm.close()
    bell.spin(lambda: bell.rung, deadline=0.1)
    assert not bell.rung


def test_alarm_without_a_node_rings_in_its_own_thread():
    rung = threading.Event()
    threads = []

    def ring():
        threads.append(threading.current_thread())
        rung.set()

    alarm = Alarm(ring)
    try:
        at = time.monotonic() + 0.02
        alarm.set(at)
        assert rung.wait(LIMIT) and time.monotonic() >= at
        rung.clear()
        alarm.set(time.monotonic())
        assert rung.wait(LIMIT)
    finally:
        alarm.close()
    assert threads[0] is threads[1] is not threading.main_thread()
    alarm.set(time.monotonic())
    assert len(threads) == 2
