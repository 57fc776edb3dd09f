"""Conditions that a node emulates for itself: a link that follows a trace, and a late robot."""
