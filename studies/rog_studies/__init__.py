"""Repeats the measurements of papers, in virtual time; not needed on a robot."""
