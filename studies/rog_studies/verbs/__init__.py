"""The verbs that this package adds to the `rog` command, through the entry points `rog.verbs`."""
