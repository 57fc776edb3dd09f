"""What a fleet trains: tasks, data, shards and the shifts that spoil them. Does not use ROS."""
