"""The three kinds of time."""

from enum import IntEnum


class ClockType(IntEnum):
    """Which time a clock shows; ROS time is system time unless `use_sim_time` is set."""

    UNINITIALIZED = 0
    ROS_TIME = 1
    SYSTEM_TIME = 2
    STEADY_TIME = 3
