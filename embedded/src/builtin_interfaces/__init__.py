"""ROS 2 interface package builtin_interfaces, without a ROS 2 installation."""
