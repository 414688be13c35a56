"""The parts of `scripts/fault-benchmark`."""
