"""What a fleet trains: tasks, data, shards of the data, changes of images. Does not use ROS."""
