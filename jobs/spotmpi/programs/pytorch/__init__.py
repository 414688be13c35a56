"""Training programs for PyTorch."""
