"""ROS 2 interface package stereo_msgs, without a ROS 2 installation."""
