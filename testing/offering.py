"""A node that offers versions of a model, as a fleet's server does."""

import math

import rclpy
from fleet_env.versions import Versions
from fleet_env.weights import state_bytes
from fleet_models.offer import Offer
from fleet_ros.spinning import Spinning
from rclpy.context import Context
from rclpy.node import Node


class Offering:
    """Offers the versions in a folder."""

    def __init__(self, folder, key=None, link_of=lambda robot: None):
        self.store = Versions(folder, keep=20)
        self.context = Context()
        rclpy.init(args=[], context=self.context)
        self.node = Node('parameter_server', namespace='/rog', context=self.context)
        self.offer = Offer(self.node, key, link_of=link_of)
        self.spinning = Spinning(self.node)
        self.up = True

    def write(self, model, accuracy=math.nan):
        """Write a version of a model."""
        return self.store.write(
            state_bytes(model), run='run', fleet='fleet', method='bsp', iteration=1,
            time='2026-11-29', accuracy=accuracy, task='task', measured_on='model',
            measured_by='server')

    def announce(self, version, pinned=False):
        """Offer a version."""
        self.spinning._executor.create_task(
            self.offer.announce, version, self.store.path(version.number), pinned)

    def give(self, model, accuracy=math.nan, pinned=False):
        """Write a version of a model and offer it."""
        version = self.write(model, accuracy)
        self.announce(version, pinned)
        return version

    def close(self):
        """End, as a server that is stopped."""
        if self.up:
            self.up = False
            self.spinning.close()
            self.offer.close()
            self.node.destroy_node()
            self.context.try_shutdown()
