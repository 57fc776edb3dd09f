"""ROS 2 interface package shape_msgs, without a ROS 2 installation."""
