"""Find the sequences of calls that a program repeats, and know them again."""
