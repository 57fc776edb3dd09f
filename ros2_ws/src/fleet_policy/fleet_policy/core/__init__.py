"""The protocol: no I/O, no clock, no thread, no ROS."""
