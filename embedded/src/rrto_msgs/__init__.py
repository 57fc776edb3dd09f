"""ROS 2 interface package rrto_msgs, without a ROS 2 installation."""
