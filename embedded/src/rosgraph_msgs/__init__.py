"""ROS 2 interface package rosgraph_msgs, without a ROS 2 installation."""
