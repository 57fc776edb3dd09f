"""What is shown of a fleet: its state on a terminal, progress, and curves in other programs."""
