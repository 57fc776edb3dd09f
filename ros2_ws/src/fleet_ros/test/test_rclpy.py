"""The properties of rclpy on which our nodes rely, for the installed ROS 2 and middleware."""

import threading

import pytest
from fleet_testing import eventually
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future
from std_srvs.srv import SetBool

LIMIT = 30.0  # seconds after which a test fails


@pytest.fixture
def node(context):
    made = Node('relies', context=context)
    yield made
    made.destroy_node()


@pytest.fixture
def executor(context, node):
    made = SingleThreadedExecutor(context=context)
    made.add_node(node)
    yield made
    made.shutdown()


def beside(function):
    """Run a function in a thread.

    Return an empty list. When the function ends, the thread adds the type of the function's
    exception to the list, or None if there was no exception.
    """
    ended = []

    def run():
        try:
            function()
            ended.append(None)
        except BaseException as error:
            ended.append(type(error))

    threading.Thread(target=run, daemon=True).start()
    return ended


def test_a_guard_that_another_thread_triggers_wakes_a_sleeping_executor(node, executor):
    rung = threading.Event()
    guard = node.create_guard_condition(rung.set)
    beside(executor.spin)
    for _ in range(20):
        rung.clear()
        guard.trigger()
        assert rung.wait(LIMIT)


def test_an_error_in_a_callback_leaves_spin(node, executor):
    node.create_guard_condition(lambda: 1 / 0).trigger()
    with pytest.raises(ZeroDivisionError):
        executor.spin()


def test_a_context_that_another_thread_shuts_down_ends_spin(context, node, executor):
    spinning = threading.Event()
    guard = node.create_guard_condition(spinning.set)
    ended = beside(executor.spin)
    guard.trigger()
    assert spinning.wait(LIMIT)
    context.try_shutdown()
    eventually(lambda: ended, lambda: 'spin ends')
    # `spin` raises RCLError, a RuntimeError, if the shutdown comes while the executor uses
    # the context.
    assert ended[0] is None or issubclass(ended[0], (ExternalShutdownException, RuntimeError))


def test_a_future_tells_those_who_wait_once_and_those_who_come_late(executor):
    future, told = Future(executor=executor), []
    future.add_done_callback(lambda done: told.append(done.result()))
    assert not future.done() and not told
    future.set_result(7)
    eventually(lambda: told, lambda: 'it is told', lambda: executor.spin_once(timeout_sec=0.1))
    future.add_done_callback(lambda done: told.append(done.result() + 1))
    eventually(lambda: len(told) > 1, lambda: 'the second is', lambda: executor.spin_once(0.1))
    assert told == [7, 8] and future.exception() is None


def test_an_answer_comes_to_the_call_that_asked_and_not_to_one_that_was_removed(node, executor):
    def switch(request, response):
        response.success = request.data
        return response

    node.create_service(SetBool, 'switch', switch)
    client = node.create_client(SetBool, 'switch')
    eventually(client.service_is_ready, lambda: 'the service is there',
               lambda: executor.spin_once(timeout_sec=0.05))
    removed = client.call_async(SetBool.Request(data=True))
    client.remove_pending_request(removed)
    calls = [(data, client.call_async(SetBool.Request(data=data)))
             for data in (True, False, True, True, False)]
    eventually(lambda: all(call.done() for _, call in calls), lambda: 'all are answered',
               lambda: executor.spin_once(timeout_sec=0.05))
    assert [call.result().success for _, call in calls] == [data for data, _ in calls]
    assert not removed.done()
