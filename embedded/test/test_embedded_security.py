"""What this rclpy cannot protect, it refuses."""

import pytest
from rclpy import _args, _profile


def test_sros_is_refused_and_not_left_out_in_silence(monkeypatch):
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "true")
    with pytest.raises(_profile.ConfigurationError, match="no SROS 2"):
        _profile.check_distribution()
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "false")
    _profile.check_distribution()


@pytest.mark.parametrize("option", ["-e", "--enclave"])
def test_an_enclave_is_refused_as_it_protects_nothing_here(option):
    with pytest.raises(_args.InvalidArgumentsError, match="--enclave /fleet/robot1: .*no SROS 2"):
        _args.parse(["--ros-args", option, "/fleet/robot1"])
