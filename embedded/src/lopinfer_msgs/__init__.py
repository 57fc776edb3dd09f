"""ROS 2 interface package lopinfer_msgs, without a ROS 2 installation."""
