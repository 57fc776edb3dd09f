"""Callbacks run in parallel to the program until `close` returns, and never afterwards."""

import gc
import threading

import pytest
from fleet_ros.spinning import Executor, Spinning
from rclpy.node import Node

LIMIT = 30.0  # seconds after which a test fails


@pytest.fixture
def node(context):
    node = Node('spinner', context=context)
    yield node
    node.destroy_node()


def spinners():
    return [t for t in threading.enumerate() if t.name == 'spinner']


def test_callbacks_run_on_another_thread_until_it_is_closed(node):
    rung = threading.Event()
    threads = set()

    def ring():
        threads.add(threading.current_thread())
        rung.set()

    guard = node.create_guard_condition(ring)
    spinning = Spinning(node)
    guard.trigger()
    assert rung.wait(LIMIT)
    assert threads.isdisjoint({threading.main_thread()}) and len(threads) == 1
    spinning.close()
    assert not spinners()
    rung.clear()
    guard.trigger()
    assert not rung.is_set()


def test_close_waits_for_the_callback_that_runs(node):
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def slow():
        entered.set()
        assert leave.wait(LIMIT)
        left.set()

    guard = node.create_guard_condition(slow)
    spinning = Spinning(node)
    guard.trigger()
    assert entered.wait(LIMIT)
    closer = threading.Thread(target=spinning.close)
    closer.start()
    assert not left.is_set() and closer.is_alive()
    leave.set()
    closer.join(LIMIT)
    assert left.is_set() and not closer.is_alive() and not spinners()


def test_spinning_ends_with_its_context(node):
    spinning = Spinning(node)
    node.context.try_shutdown()
    spinning.close()
    assert not spinners()


def test_spinning_can_be_closed_while_messages_arrive(node):
    for _ in range(50):
        guard = node.create_guard_condition(lambda: guard.trigger())
        spinning = Spinning(node)
        guard.trigger()
        spinning.close()
        assert not spinners()
        node.destroy_guard_condition(guard)


def test_an_executor_whose_constructor_is_interrupted_is_deleted_without_an_error(monkeypatch):
    monkeypatch.setattr('sys.unraisablehook', lambda error: failed.append(error.exc_value))
    failed = []
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr('rclpy.executors.GuardCondition', interrupted)
        Executor()
    gc.collect()
    assert not failed


def interrupted(*args, **kwargs):
    raise KeyboardInterrupt
