"""ROS 2 interface package sensor_msgs, without a ROS 2 installation."""
