"""Nodes of one process that a test spins, in a DDS domain of their own."""

import rclpy
from fleet_testing import eventually, free_domain
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node


class OneProcess:
    """Has the node `caller`, which calls services of the node `thing`."""

    def __init__(self):
        self.context = Context()
        rclpy.init(context=self.context, domain_id=free_domain())
        self.executor = SingleThreadedExecutor(context=self.context)
        self.caller = self.add(Node('caller', context=self.context,
                                    start_parameter_services=False))
        self._clients = {}

    def add(self, node):
        self.executor.add_node(node)
        return node

    def call(self, kind, name, **fields):
        """Call a service of `thing`; an exception in its callback is raised here."""
        if name not in self._clients:
            self._clients[name] = self.caller.create_client(kind, f'/thing/{name}')
        client = self._clients[name]
        step = lambda: self.executor.spin_once(timeout_sec=0.05)  # noqa: E731
        eventually(client.service_is_ready, step=step)
        future = client.call_async(kind.Request(**fields))
        eventually(future.done, step=step)
        return future.result()

    def close(self):
        for node in list(self.executor.get_nodes()):
            node.destroy_node()
        self.executor.shutdown()
        self.context.try_shutdown()
