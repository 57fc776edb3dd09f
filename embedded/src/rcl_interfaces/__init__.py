"""ROS 2 interface package rcl_interfaces, without a ROS 2 installation."""
