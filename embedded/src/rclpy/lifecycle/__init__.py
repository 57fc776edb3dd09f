"""Managed nodes: nodes with a life cycle that others can look at and drive."""

from rclpy.lifecycle._machine import LifecycleState, TransitionCallbackReturn
from rclpy.lifecycle.managed_entity import ManagedEntity, SimpleManagedEntity
from rclpy.lifecycle.node import LifecycleNode, LifecycleNodeMixin
from rclpy.lifecycle.publisher import LifecyclePublisher

Node = LifecycleNode
NodeMixin = LifecycleNodeMixin
State = LifecycleState
Publisher = LifecyclePublisher

__all__ = [
    "LifecycleNode",
    "LifecycleNodeMixin",
    "LifecyclePublisher",
    "LifecycleState",
    "ManagedEntity",
    "Node",
    "NodeMixin",
    "Publisher",
    "SimpleManagedEntity",
    "State",
    "TransitionCallbackReturn",
]
