"""What a fleet trains: tasks, data, shards and shifts of images. Does not use ROS."""
