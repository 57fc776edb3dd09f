"""ROS 2 interface package tf2_msgs, without a ROS 2 installation."""
