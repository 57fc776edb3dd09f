"""ROS 2 interface package diagnostic_msgs, without a ROS 2 installation."""
