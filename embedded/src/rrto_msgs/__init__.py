"""ROS 2 interface package rrto_msgs, without a ROS 2 installation."""

from rog_embedded import need_our_rclpy

need_our_rclpy(__name__)
