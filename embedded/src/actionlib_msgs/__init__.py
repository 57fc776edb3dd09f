"""ROS 2 interface package actionlib_msgs, without a ROS 2 installation."""
