"""Links: traces of their rate, and the channels and buckets that follow a trace in time."""
