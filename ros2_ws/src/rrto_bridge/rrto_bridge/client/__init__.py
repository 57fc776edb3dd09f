"""The robot's side: the link, and the engines that send or replay the calls of a program."""
