"""The device that an unmodified PyTorch program sees: interception and dispatch of operators."""
