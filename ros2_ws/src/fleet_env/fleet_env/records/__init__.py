"""Run records: the events and the summary of a run, and what writes them."""
