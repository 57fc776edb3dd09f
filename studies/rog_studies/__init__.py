"""What papers measured, measured again; nothing of it is needed on a robot."""
