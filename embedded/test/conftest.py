"""A context with its executor for each test; fields of messages are checked."""

import os
import sys
from pathlib import Path

os.environ["ROS_PYTHON_CHECK_FIELDS"] = "1"  # read by rosidl when a message package is imported
sys.path.insert(0, str(Path(__file__).parent))

import pytest  # noqa: E402
from support import EMBEDDED, Bench  # noqa: E402

# Under a real rclpy there is nothing inside to test. To skip in the files would not do: launch's
# plugin imports them, and a skip there ends the whole session.
collect_ignore_glob = [] if EMBEDDED else ["test_embedded_*"]


def pytest_report_header(config):
    import rclpy

    return f"rclpy: {rclpy.__file__}, domain {os.environ['ROS_DOMAIN_ID']}"


@pytest.fixture
def bench():
    """A context with an executor; nodes made with it are destroyed at the end."""
    made = Bench()
    yield made
    made.close()
