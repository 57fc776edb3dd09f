"""What a fleet trains: tasks, their data and its shards, and shifts of images. Does not use ROS."""
