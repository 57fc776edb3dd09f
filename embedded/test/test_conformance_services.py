"""Services, in one process and between two."""

import threading

import pytest
from rcl_interfaces.msg import LoggerLevel
from rcl_interfaces.srv import GetLoggerLevels, SetLoggerLevels
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor
from rclpy.logging import LoggingSeverity
from std_srvs.srv import Empty, SetBool, Trigger
from support import DEADLINE


def answer(request, response):
    response.success = request.data
    response.message = "answered"
    return response


def test_call_async(bench):
    node = bench.node()
    node.create_service(SetBool, "switch", answer)
    client = node.create_client(SetBool, "switch")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    assert client.service_is_ready()
    response = bench.result(client.call_async(SetBool.Request(data=True)))
    assert (response.success, response.message) == (True, "answered")
    assert not bench.result(client.call_async(SetBool.Request(data=False))).success


def test_many_calls_keep_their_answers_apart(bench):
    node = bench.node()

    def number(request, response):
        response.message = str(node.calls)
        node.calls += 1
        return response

    node.calls = 0
    node.create_service(Trigger, "number", number)
    client = node.create_client(Trigger, "number")
    other = node.create_client(Trigger, "number")
    for c in (client, other):
        assert c.wait_for_service(timeout_sec=DEADLINE)
    futures = [c.call_async(Trigger.Request()) for c in (client, other) for _ in range(5)]
    answers = [int(bench.result(f).message) for f in futures]
    assert sorted(answers) == list(range(10))
    assert answers[:5] == sorted(answers[:5])


def test_messages_without_fields(bench):
    node = bench.node()
    node.create_service(Empty, "nothing", lambda request, response: response)
    client = node.create_client(Empty, "nothing")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    assert bench.result(client.call_async(Empty.Request())) == Empty.Response()


def test_done_callback_gets_the_answer(bench):
    node, got = bench.node(), []
    node.create_service(SetBool, "switch", answer)
    client = node.create_client(SetBool, "switch")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    future = client.call_async(SetBool.Request(data=True))
    future.add_done_callback(lambda f: got.append(f.result().message))
    bench.spin_until(lambda: got)
    assert got == ["answered"]


def test_no_service(bench):
    client = bench.node().create_client(SetBool, "nowhere")
    assert not client.service_is_ready()
    assert not client.wait_for_service(timeout_sec=0.05)
    with pytest.raises(TypeError):
        client.call_async(SetBool.Response())


def test_names_as_given_and_in_full(bench):
    node = bench.node("named", namespace="/place")
    client = node.create_client(Empty, "answer")
    service = node.create_service(Empty, "~/answer", answer)
    assert (client.srv_name, client.service_name) == ("answer", "/place/answer")
    assert (service.srv_name, service.service_name) == ("~/answer", "/place/named/answer")


def test_removed_request_never_completes(bench):
    node = bench.node()
    node.create_service(SetBool, "switch", answer)
    client = node.create_client(SetBool, "switch")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    removed = client.call_async(SetBool.Request(data=True))
    client.remove_pending_request(removed)
    bench.result(client.call_async(SetBool.Request(data=True)))
    assert not removed.done()


def test_another_process(bench):
    bench.peer("server")
    client = bench.node(namespace="/test").create_client(SetBool, "switch")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    for data in (True, False):
        response = bench.result(client.call_async(SetBool.Request(data=data)))
        assert (response.success, response.message) == (data, "/test/peer_server")


def test_several_clients_in_several_contexts(bench):
    from support import Bench

    bench.peer("server")
    others = [Bench() for _ in range(2)]
    try:
        for b in others:
            client = b.node(namespace="/test").create_client(SetBool, "switch")
            assert client.wait_for_service(timeout_sec=DEADLINE)
            assert b.result(client.call_async(SetBool.Request(data=True))).success
    finally:
        for b in others:
            b.close()


def test_blocking_call_while_another_thread_spins(bench):
    bench.peer("server")
    node = bench.node(namespace="/test")
    client = node.create_client(SetBool, "switch")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            bench.executor.spin_once(timeout_sec=0.05)

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert client.call(SetBool.Request(data=True)).success
    finally:
        stop.set()
        thread.join()


def test_call_inside_a_callback_of_a_multithreaded_executor():
    from support import Bench

    bench = Bench(executor=MultiThreadedExecutor)
    try:
        node, got = bench.node(), []
        group = ReentrantCallbackGroup()
        node.create_service(SetBool, "switch", answer, callback_group=group)
        client = node.create_client(SetBool, "switch", callback_group=group)
        assert client.wait_for_service(timeout_sec=DEADLINE)

        def call_once():
            timer.cancel()
            got.append(client.call(SetBool.Request(data=True)).message)

        timer = node.create_timer(0.001, call_once, callback_group=group)
        bench.spin_until(lambda: got)
        assert got == ["answered"]
    finally:
        bench.close()


def test_awaiting_a_call_in_a_callback(bench):
    node, got = bench.node(), []
    group = ReentrantCallbackGroup()
    node.create_service(SetBool, "switch", answer, callback_group=group)
    client = node.create_client(SetBool, "switch", callback_group=group)
    assert client.wait_for_service(timeout_sec=DEADLINE)

    async def call_once():
        timer.cancel()
        response = await client.call_async(SetBool.Request(data=True))
        got.append(response.message)

    timer = node.create_timer(0.001, call_once)
    bench.spin_until(lambda: got)
    assert got == ["answered"]


def test_coroutine_as_service(bench):
    node = bench.node()

    async def answer_later(request, response):
        return answer(request, response)

    node.create_service(SetBool, "switch", answer_later)
    client = node.create_client(SetBool, "switch")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    assert bench.result(client.call_async(SetBool.Request(data=True))).success


def test_log_levels_over_services(bench):
    node = bench.node("talkative", enable_logger_service=True)
    client = node.create_client(SetLoggerLevels, "talkative/set_logger_levels")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    levels = [LoggerLevel(name="talkative", level=LoggerLevel.LOG_LEVEL_ERROR)]
    levels.append(LoggerLevel(name="talkative", level=7))
    results = bench.result(client.call_async(SetLoggerLevels.Request(levels=levels))).results
    assert [r.successful for r in results] == [True, False]
    assert results[1].reason
    assert not node.get_logger().is_enabled_for(LoggingSeverity.WARN)
    client = node.create_client(GetLoggerLevels, "talkative/get_logger_levels")
    assert client.wait_for_service(timeout_sec=DEADLINE)
    names = ["talkative", "never_heard_of"]
    answer = bench.result(client.call_async(GetLoggerLevels.Request(names=names)))
    assert [(entry.name, entry.level) for entry in answer.levels] == list(zip(names, [40, 0]))
    quiet = bench.node("quiet")
    services = quiet.get_service_names_and_types_by_node("quiet", "/")
    assert not [name for name, _ in services if "logger_levels" in name]
