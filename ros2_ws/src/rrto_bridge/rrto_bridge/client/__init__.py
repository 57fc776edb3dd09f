"""The robot's end: engines that send a program's calls or replay them, and the link."""
