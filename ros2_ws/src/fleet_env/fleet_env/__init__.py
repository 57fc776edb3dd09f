"""Settings and surroundings of a fleet: fleet files, links, power, run records. No ROS."""
