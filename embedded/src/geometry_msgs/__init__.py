"""ROS 2 interface package geometry_msgs, without a ROS 2 installation."""
