"""What a fleet lives in: links, power, fleet files, run records. No ROS, no training."""
