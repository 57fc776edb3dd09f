"""Decides what the robot executes and where it is computed; no I/O, clock, threads or ROS."""
