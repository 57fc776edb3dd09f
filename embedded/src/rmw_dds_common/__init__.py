"""ROS 2 interface package rmw_dds_common, without a ROS 2 installation."""
