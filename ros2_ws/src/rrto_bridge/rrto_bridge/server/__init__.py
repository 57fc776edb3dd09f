"""The server's end: a supervisor, and one process for each program."""
