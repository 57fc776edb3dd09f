"""Execute calls on tensors: on the server, or on the robot after the server is lost."""
