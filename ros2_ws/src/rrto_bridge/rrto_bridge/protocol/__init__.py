"""What both ends share: calls, tensors and messages as values, their checks and their bytes."""
