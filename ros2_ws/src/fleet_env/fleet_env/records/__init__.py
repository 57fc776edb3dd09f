"""Run records: the events and the summary of a run, and the classes that write them."""
