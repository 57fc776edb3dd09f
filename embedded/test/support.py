"""What the tests share: contexts that clean up, waiting for conditions, other processes.

CONFORMANCE_PEER names a program that runs peer.py instead of this Python, for example a script that
sources a real ROS 2 first: then every test with two processes is one of both kinds of rclpy.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

DEADLINE = 30.0  # generous: nothing in a test depends on how fast things happen
EMBEDDED = hasattr(rclpy, "_types") or (Path(rclpy.__file__).parent / "_types.py").exists()
EMBEDDED_PEER = EMBEDDED and "CONFORMANCE_PEER" not in os.environ
PEER = Path(__file__).parent / "peer.py"


class Bench:
    """A context, an executor, nodes and other processes, all ended by close()."""

    def __init__(self, args=(), executor=SingleThreadedExecutor):
        self.context = Context()
        rclpy.init(args=["test", *args], context=self.context)
        self.executor = executor(context=self.context)
        self.nodes = []
        self.peers = []

    def node(self, name="node", **kwargs):
        node = Node(name, context=self.context, **kwargs)
        self.nodes.append(node)
        self.executor.add_node(node)
        return node

    def spin_until(self, condition, deadline=DEADLINE):
        """Run callbacks until the condition holds; fail when it never does."""
        end = time.monotonic() + deadline
        while not condition():
            assert time.monotonic() < end, "the condition never came true"
            self.executor.spin_once(timeout_sec=0.05)

    def result(self, future):
        self.spin_until(future.done)
        return future.result()

    def peer(self, role, *args):
        peer = Peer(role, *args)
        self.peers.append(peer)
        return peer

    def close(self):
        for peer in self.peers:
            peer.close()
        self.executor.shutdown()
        for node in self.nodes:
            node.destroy_node()
        self.context.try_shutdown()


class Peer:
    """Another process that plays a role of peer.py; it says `ready` first."""

    def __init__(self, role, *args):
        self.process = subprocess.Popen(
            [os.environ.get("CONFORMANCE_PEER", sys.executable), str(PEER), role, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that starts the tests in the background has SIGINT ignored, and so would we.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.expect("ready")

    def line(self):
        line = self.process.stdout.readline()
        assert line, f"the peer has ended: {self.process.stderr.read()}"
        return line.strip()

    def expect(self, text):
        """Read lines until one is `text`."""
        while self.line() != text:
            pass

    def say(self, text):
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def interrupt(self, number=signal.SIGINT):
        """Send a signal; returns exit code and what the process wrote.

        The real rclpy can miss one: it wakes the executor before it shuts the context down, so a
        fast executor goes back to sleep in between. A second signal reaches it.
        """
        self.process.send_signal(number)
        # Its input stays open until it has ended: the end of that would shut it down, too.
        try:
            self.process.wait(DEADLINE if EMBEDDED_PEER else 3)
        except subprocess.TimeoutExpired:
            assert not EMBEDDED_PEER, "the signal had no effect"
            self.process.send_signal(number)
            self.process.wait(DEADLINE)
        out, err = self.process.communicate()
        return self.process.returncode, out, err

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
