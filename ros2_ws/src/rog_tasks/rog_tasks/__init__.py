"""What a fleet trains: tasks, data, shards of the data, shifts of the world. Does not use ROS."""
