"""Find the sequences of calls that a program repeats, and recognise them later."""
