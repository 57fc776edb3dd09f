"""Decides which actions the robot executes, and where they are computed.

The modules of this package do no I/O, read no clock, and use neither threads nor ROS.
"""
