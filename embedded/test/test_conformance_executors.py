"""Executors, timers, guard conditions, callback groups, futures."""

import threading
import time

import pytest
import rclpy
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.executors import (
    Executor,
    ExternalShutdownException,
    MultiThreadedExecutor,
    SingleThreadedExecutor,
    TimeoutException,
)
from rclpy.task import Future
from std_msgs.msg import String
from support import DEADLINE, Bench


@pytest.fixture
def parallel():
    made = Bench(executor=lambda context: MultiThreadedExecutor(4, context=context))
    yield made
    made.close()


def returns(call):
    """Whether the call comes back; it runs in a thread, so that one that does not ends the test."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    return not thread.is_alive()


def test_timer(bench):
    node, calls = bench.node(), []
    timer = node.create_timer(0.001, lambda: calls.append(1))
    assert timer.timer_period_ns == 1_000_000
    bench.spin_until(lambda: len(calls) >= 3)
    timer.cancel()
    assert timer.is_canceled()
    count = len(calls)
    for _ in range(3):
        bench.executor.spin_once(timeout_sec=0.005)
    assert len(calls) == count
    timer.reset()
    assert not timer.is_canceled()
    bench.spin_until(lambda: len(calls) > count)
    assert node.destroy_timer(timer)


def test_timer_counts_from_now_on(bench):
    timer = bench.node().create_timer(1000.0, lambda: None)
    assert 0 < timer.time_until_next_call() <= 1_000_000_000_000
    assert not timer.is_ready()


def test_timer_that_is_not_started(bench):
    node, calls = bench.node(), []
    timer = node.create_timer(0.001, lambda: calls.append(1), autostart=False)
    bench.executor.spin_once(timeout_sec=0.01)
    assert not calls
    timer.reset()
    bench.spin_until(lambda: calls)


def test_slow_timers_do_not_pile_up(bench):
    node, calls = bench.node(), []
    node.create_timer(0.001, lambda: (calls.append(1), time.sleep(0.02)))
    bench.spin_until(lambda: len(calls) >= 2)
    assert len(calls) < 10


def test_guard_condition_from_another_thread(bench):
    node, calls = bench.node(), []
    guard = node.create_guard_condition(lambda: calls.append(threading.current_thread()))
    thread = threading.Thread(target=guard.trigger)
    thread.start()
    bench.spin_until(lambda: calls)
    thread.join()
    assert calls == [threading.current_thread()]


def test_guard_condition_wakes_a_sleeping_executor(bench):
    node, calls = bench.node(), []
    guard = node.create_guard_condition(lambda: calls.append(1))
    timer = threading.Timer(0.05, guard.trigger)

    def spin():
        timer.start()
        while not calls:
            bench.executor.spin_once()  # has no end of its own: only the trigger wakes it

    assert returns(spin), "the executor sleeps on"
    timer.join()
    assert calls == [1]


def test_spin_once_gives_up_in_time(bench):
    calls = []
    bench.node().create_timer(1000.0, lambda: calls.append(1))

    def spin():
        for _ in range(5):  # what the start left to do
            bench.executor.spin_once(timeout_sec=0)
        bench.executor.spin_once(timeout_sec=0.01)

    assert returns(spin), "the executor waits for work that is not due"
    assert not calls


def test_one_piece_of_work_at_a_time(bench):
    node, calls = bench.node(), []
    guards = [node.create_guard_condition(lambda: calls.append(1)) for _ in range(3)]
    for guard in guards:
        guard.trigger()
    seen = []
    while len(calls) < 3:
        before = len(calls)
        bench.executor.spin_once(timeout_sec=1)
        seen.append(len(calls) - before)
    assert max(seen) == 1


def test_exception_in_a_callback_leaves_spin(bench):
    node = bench.node()

    def fail():
        raise ZeroDivisionError("on purpose")

    node.create_timer(0.001, fail)
    with pytest.raises(ZeroDivisionError):
        bench.spin_until(lambda: False)


def test_exception_in_a_thread_leaves_spin(parallel):
    def fail():
        raise ZeroDivisionError("on purpose")

    parallel.node().create_timer(0.001, fail)
    with pytest.raises(ZeroDivisionError):
        parallel.spin_until(lambda: False)


def test_future():
    future, called = Future(), []
    future.add_done_callback(lambda f: called.append(f.result()))
    assert not future.done() and future.result() is None
    future.set_result(3)
    assert future.done() and future.result() == 3 and called == [3]
    failed = Future()
    failed.set_exception(ValueError("x"))
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(ValueError):
        failed.result()
    cancelled = Future()
    cancelled.cancel()
    assert cancelled.cancelled() and not cancelled.done()


def test_tasks(bench):
    bench.node()

    async def add(a, b):
        return a + b

    assert bench.result(bench.executor.create_task(lambda x: x * 2, 21)) == 42
    assert bench.result(bench.executor.create_task(add, 1, b=2)) == 3


def test_coroutines_wait_for_futures(bench):
    bench.node()
    gate, steps = Future(executor=bench.executor), []

    async def wait():
        steps.append("before")
        steps.append(await gate)

    task = bench.executor.create_task(wait)
    bench.spin_until(lambda: steps)
    assert steps == ["before"] and not task.done()
    gate.set_result("after")
    bench.spin_until(task.done)
    assert steps == ["before", "after"]


def test_spin_until_future_complete(bench):
    node, future = bench.node(), Future()
    timer = threading.Timer(0.05, lambda: future.set_result("done"))
    timer.start()
    bench.executor.spin_until_future_complete(future, timeout_sec=DEADLINE)
    assert future.result() == "done"
    timer.join()
    bench.executor.spin_until_future_complete(Future(), timeout_sec=0.02)
    rclpy.spin_until_future_complete(node, Future(), bench.executor, timeout_sec=0.02)


def test_shutdown_from_another_thread_ends_spin(bench):
    bench.node()
    thread = threading.Timer(0.05, bench.context.try_shutdown)
    thread.start()
    with pytest.raises(ExternalShutdownException):
        bench.executor.spin()
    thread.join()


def test_shutdown_of_a_threaded_executor(parallel):
    parallel.node()
    thread = threading.Timer(0.05, parallel.context.try_shutdown)
    thread.start()
    parallel.executor.spin()
    thread.join()
    assert not parallel.context.ok()


def test_shutdown_in_a_callback_ends_spin(bench):
    bench.node().create_timer(0.001, bench.context.try_shutdown)
    bench.executor.spin()
    assert not bench.context.ok()


def test_executor_shutdown_ends_spin(bench):
    bench.node().create_timer(0.001, lambda: bench.executor.shutdown(timeout_sec=0))
    bench.executor.spin()
    assert bench.context.ok()


def test_nodes_come_and_go(bench):
    node, calls = bench.node(), []
    node.create_timer(0.001, lambda: calls.append(1))
    bench.spin_until(lambda: calls)
    assert node.executor is bench.executor
    bench.executor.remove_node(node)
    assert node not in bench.executor.get_nodes()
    bench.executor.spin_once(timeout_sec=0.01)
    count = len(calls)
    bench.executor.spin_once(timeout_sec=0.01)
    assert len(calls) == count
    other = SingleThreadedExecutor(context=bench.context)
    other.add_node(node)
    while len(calls) == count:
        other.spin_once(timeout_sec=1)
    other.shutdown()


def test_entities_made_in_callbacks(bench):
    node, got = bench.node(), []
    publisher = node.create_publisher(String, "topic", 10)

    def make():
        timer.cancel()
        node.create_subscription(String, "topic", lambda m: got.append(m.data), 10)

    timer = node.create_timer(0.001, make)
    bench.spin_until(publisher.get_subscription_count)
    publisher.publish(String(data="x"))
    bench.spin_until(lambda: got)


class Overlap:
    """Counts how many of its callbacks run at the same time."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = self.most = self.calls = 0
        self.meet = threading.Event()

    def __call__(self, *_):
        with self.lock:
            self.running += 1
            self.calls += 1
            self.most = max(self.most, self.running)
            if self.running > 1:
                self.meet.set()
        self.meet.wait(0.01)
        with self.lock:
            self.running -= 1


def test_exclusive_group(parallel):
    node, overlap = parallel.node(), Overlap()
    group = MutuallyExclusiveCallbackGroup()
    for _ in range(3):
        node.create_timer(0.001, overlap, callback_group=group)
    parallel.spin_until(lambda: overlap.calls >= 10)
    assert overlap.most == 1


def test_the_default_group_is_exclusive(parallel):
    node, overlap = parallel.node(), Overlap()
    node.create_timer(0.001, overlap)
    node.create_timer(0.001, overlap)
    parallel.spin_until(lambda: overlap.calls >= 6)
    assert overlap.most == 1


def test_different_groups_overlap(parallel):
    node, overlap = parallel.node(), Overlap()
    for _ in range(2):
        node.create_timer(0.001, overlap, callback_group=MutuallyExclusiveCallbackGroup())
    parallel.spin_until(lambda: overlap.most >= 2)


def test_reentrant_group_overlaps_with_itself(parallel):
    node, overlap = parallel.node(), Overlap()
    node.create_timer(0.001, overlap, callback_group=ReentrantCallbackGroup())
    parallel.spin_until(lambda: overlap.most >= 2)


def test_threads_lose_no_messages(parallel):
    node, got, lock = parallel.node(), [], threading.Lock()

    def receive(message):
        with lock:
            got.append(int(message.data))

    node.create_subscription(String, "topic", receive, 1000)
    publisher = node.create_publisher(String, "topic", 1000)
    parallel.spin_until(publisher.get_subscription_count)
    for i in range(200):
        publisher.publish(String(data=str(i)))
    parallel.spin_until(lambda: len(got) == 200)
    assert got == list(range(200))  # one exclusive group: in order


def test_rate(bench):
    node = bench.node()
    rate = node.create_rate(200)
    slept = []

    def sleep():
        for _ in range(3):
            rate.sleep()
            slept.append(1)

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    assert not slept  # a rate ticks only while somebody spins
    bench.spin_until(lambda: len(slept) == 3)
    thread.join()
    node.destroy_rate(rate)


def test_shutdown_does_not_wait_for_a_coroutine_that_waits(bench):
    reached = []

    async def wait_for_ever():
        reached.append(1)
        await Future()

    bench.node().create_timer(0.001, wait_for_ever)
    bench.spin_until(lambda: reached)
    assert returns(bench.executor.shutdown)


class OneByOne(Executor):
    """An executor of somebody's own: runs each callback in a new thread, notes whose it was."""

    def __init__(self, *, context):
        super().__init__(context=context)
        self.seen = []

    def spin_once(self, timeout_sec=None):
        try:
            handler, entity, node = self.wait_for_ready_callbacks(timeout_sec=timeout_sec)
        except TimeoutException:
            return
        self.seen.append((entity, node))
        thread = threading.Thread(target=handler)
        thread.start()
        thread.join(DEADLINE)
        if handler.exception() is not None:
            raise handler.exception()


@pytest.fixture
def own():
    made = Bench(executor=OneByOne)
    yield made
    made.close()


def test_an_executor_of_ones_own(own):
    node, calls = own.node(), []
    guard = node.create_guard_condition(lambda: calls.append(threading.current_thread()))
    guard.trigger()
    own.spin_until(lambda: calls)
    assert calls[0] is not threading.current_thread()
    assert (guard, node) in own.executor.seen
    task = own.executor.create_task(lambda: "done")
    own.spin_until(task.done)
    assert task.result() == "done"


def test_an_executor_of_ones_own_gets_exceptions(own):
    own.node().create_timer(0.001, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        own.spin_until(lambda: False)


def test_the_base_of_executors_runs_nothing(bench):
    base = Executor(context=bench.context)
    with pytest.raises(NotImplementedError):
        base.spin_once()
    base.shutdown()
