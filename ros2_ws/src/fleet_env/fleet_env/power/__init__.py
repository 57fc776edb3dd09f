"""The energy of a robot: estimated from its states, or measured on a Jetson."""
