"""Code of both ends: calls, tensors and messages as values, their checks and their encoding."""
