"""ROS 2 interface package unique_identifier_msgs, without a ROS 2 installation."""
