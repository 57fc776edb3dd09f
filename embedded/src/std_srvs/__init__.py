"""ROS 2 interface package std_srvs, without a ROS 2 installation."""
