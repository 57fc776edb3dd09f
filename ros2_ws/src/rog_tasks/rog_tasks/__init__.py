"""What a fleet trains: tasks, data, shards and the shifts that spoil them. Knows no ROS."""
