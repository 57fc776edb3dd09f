"""ROS 2 interface package visualization_msgs, without a ROS 2 installation."""
