"""ROS 2 interface package std_msgs, without a ROS 2 installation."""
