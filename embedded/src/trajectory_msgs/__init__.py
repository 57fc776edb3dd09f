"""ROS 2 interface package trajectory_msgs, without a ROS 2 installation."""
