"""Publishers that are silent while their node is not active."""

from __future__ import annotations

from typing import Any

from rclpy.lifecycle.managed_entity import SimpleManagedEntity
from rclpy.publisher import Publisher


class LifecyclePublisher(SimpleManagedEntity, Publisher):
    """Publishes while its node is active. Made by LifecycleNode.create_lifecycle_publisher."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SimpleManagedEntity.__init__(self)
        Publisher.__init__(self, *args, **kwargs)

    @SimpleManagedEntity.when_enabled
    def publish(self, msg: Any) -> None:
        """Publish a message, or its serialised bytes; nothing while the node is not active."""
        Publisher.publish(self, msg)
