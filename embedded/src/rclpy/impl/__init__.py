"""Where rclpy keeps what programs should not import, and a few do."""
