"""Fixtures that the tests of nodes share."""

import pytest
import rclpy
from rclpy.context import Context


@pytest.fixture
def context():
    made = Context()
    rclpy.init(args=[], context=made)
    yield made
    made.try_shutdown()
