"""The robot's end: the link, and the engines that send or replay the calls of a program."""
