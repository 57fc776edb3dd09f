"""ROS 2 interface package lifecycle_msgs, without a ROS 2 installation."""
