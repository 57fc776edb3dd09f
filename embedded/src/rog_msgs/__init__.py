"""ROS 2 interface package rog_msgs, without a ROS 2 installation."""
