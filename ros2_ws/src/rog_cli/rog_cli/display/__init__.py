"""What a terminal shows of a fleet: its state, from topics or from a recording, and progress."""
