"""A context that is shut down while another thread is in the middle of something."""

import ctypes
from contextlib import suppress

import pytest
from rclpy import _dds
from rclpy.executors import ExternalShutdownException
from rclpy.wait_for_message import wait_for_message
from std_msgs.msg import String
from std_srvs.srv import SetBool
from support import DEADLINE, Bench

# With the others entities of DDS are deleted, or they hold the lock that shutting down needs.
KEPT = ("_create_domain", "_create_participant", "_delete", "_set_guard", "_free")
CALLS = [
    name
    for name, value in vars(_dds).items()
    if name not in KEPT and (name.startswith("ddspy_") or isinstance(value, ctypes._CFuncPtr))
]


def wait_for_a_message(made):
    node = made.node()
    return lambda: wait_for_message(String, node, "nobody") == (False, None)


def wait_for_a_service(made):
    client = made.node().create_client(SetBool, "nobody")
    return lambda: not client.wait_for_service()


def wait_for_a_node(made):
    node = made.node()
    return lambda: not node.wait_for_node("/nobody", timeout=1e6)


def answer_a_request(made):
    node = made.node()
    client = node.create_client(SetBool, "switch")
    node.create_service(SetBool, "switch", lambda request, response: response)
    assert client.wait_for_service(DEADLINE)
    client.call_async(SetBool.Request())

    def spin():
        with suppress(ExternalShutdownException):
            made.executor.spin()
        return True

    return spin


@pytest.mark.parametrize(
    ("prepare", "last"),
    [
        (wait_for_a_message, "_waitset_wait"),
        (wait_for_a_service, "_waitset_wait"),
        (wait_for_a_node, "_waitset_wait"),
        (answer_a_request, "_write"),
    ],
)
def test_a_context_that_goes_before_any_call_of_dds_ends_a_wait(prepare, last, monkeypatch):
    before, reached = 0, None
    while reached != last:
        before, reached = before + 1, None
        made, count = Bench(), 0
        wait = prepare(made)

        def counted(name, function, made=made, before=before):
            def call(*arguments):
                nonlocal count, reached
                count += 1
                if count == before:
                    reached = name
                    made.context.try_shutdown()
                return function(*arguments)

            return call

        with monkeypatch.context() as patched:
            for name in CALLS:
                patched.setattr(_dds, name, counted(name, getattr(_dds, name)))
            assert wait(), f"shut down before {reached}"
        assert not made.context.ok()
        made.close()
