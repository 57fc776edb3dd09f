"""The verbs of `rog`, one file per verb, and the options that they share."""
