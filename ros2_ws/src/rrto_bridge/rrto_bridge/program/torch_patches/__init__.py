"""Replacements for parts of PyTorch that do not go through its dispatcher."""
