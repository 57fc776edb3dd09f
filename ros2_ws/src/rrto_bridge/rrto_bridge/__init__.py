"""RRTO: an unmodified PyTorch program uses a server's GPU (thesis chapter 5)."""
