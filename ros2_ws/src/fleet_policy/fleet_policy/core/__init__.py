"""Decides what the robot executes and where it is computed.

The modules of this package do no I/O, read no clock, and use neither threads nor ROS.
"""
