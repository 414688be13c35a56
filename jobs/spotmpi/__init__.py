"""Distributed training over MPI, from this machine to spot GPUs."""

__version__ = "0.1.0"
