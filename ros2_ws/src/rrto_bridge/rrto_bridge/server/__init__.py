"""The server: a supervisor, a fork server, and one process for each program."""
