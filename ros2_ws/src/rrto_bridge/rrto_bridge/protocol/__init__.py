"""Code for client and server: calls, tensors and messages as values, with checks and encoding."""
