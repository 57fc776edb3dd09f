"""Code for client and server: types for calls, tensors and messages, with checks and encoding."""
