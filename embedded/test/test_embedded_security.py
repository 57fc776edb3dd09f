"""What this rclpy cannot protect, it refuses."""

import pytest
from rclpy import _profile


def test_sros_is_refused_and_not_left_out_in_silence(monkeypatch):
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "true")
    with pytest.raises(_profile.ConfigurationError, match="no SROS 2"):
        _profile.check_distribution()
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "false")
    _profile.check_distribution()
