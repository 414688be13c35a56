"""A real Kubernetes on this machine for tests: one file per part, nothing left behind."""
