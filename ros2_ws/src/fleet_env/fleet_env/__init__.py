"""Fleet files, settings, emulated links, power and run records. This package needs no ROS."""
