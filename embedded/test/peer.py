"""Roles that tests run in other processes. A peer ends when its standard input does."""

import sys
import threading

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import String, UInt8MultiArray
from std_srvs.srv import SetBool, Trigger

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def say(text):
    print(text, flush=True)


def echo(node):
    """Answers every message with the same message."""
    text = node.create_publisher(String, "echo", 10)
    node.create_subscription(String, "say", lambda m: text.publish(m), 10)
    data = node.create_publisher(UInt8MultiArray, "echo_bytes", 10)
    node.create_subscription(UInt8MultiArray, "say_bytes", lambda m: data.publish(m), 10)


def latch(node):
    """Has published once, before anybody listened."""
    publisher = node.create_publisher(String, "latched", LATCHED)
    publisher.publish(String(data="from before"))
    node.kept = publisher


def server(node):
    """Offers services."""

    def set_bool(request, response):
        response.success = request.data
        response.message = node.get_fully_qualified_name()
        return response

    node.create_service(SetBool, "switch", set_bool)
    node.create_service(Trigger, "silent", lambda request, response: response)


def parameters(node):
    """Has parameters."""
    node.declare_parameter("speed", 1.5)
    node.declare_parameter("names", ["a", "b"])
    node.declare_parameter("count", 7)


def logger(node):
    """Logs a line for every message."""
    node.create_subscription(String, "log", lambda m: node.get_logger().warning(m.data), 10)


def idle(node):
    """Does nothing."""


def callback_error(node):
    """Fails in a callback."""

    def fail():
        raise ZeroDivisionError("in a timer")

    node.create_timer(0.01, fail)


ROLES = {f.__name__: f for f in (echo, latch, server, parameters, logger, idle, callback_error)}


def main():
    role, *args = sys.argv[1:]
    bare = role.startswith("bare:")  # leave the reaction to signals to Python
    rclpy.init(args=["peer", *args])
    name = role.removeprefix("bare:")
    node = Node(f"peer_{name}", namespace="/test")
    # Ready means: the executor runs. Before the role, whose timer may be due at the same time.
    ready = node.create_timer(0.0, lambda: (ready.cancel(), say("ready")))
    ROLES[name](node)

    def wait_for_end():
        sys.stdin.read()
        rclpy.try_shutdown()

    if not bare:
        threading.Thread(target=wait_for_end, daemon=True).start()
    if bare:
        rclpy.spin(node)
        say("spin returned")
        return
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException) as error:
        say(f"ended by {type(error).__name__}")
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
        say("clean")


if __name__ == "__main__":
    main()
