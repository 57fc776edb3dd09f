"""ROS 2 interface package nav_msgs, without a ROS 2 installation."""
