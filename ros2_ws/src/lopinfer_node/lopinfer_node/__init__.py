"""LOPInfer: robot and server share one inference at the granularity of local operations."""
