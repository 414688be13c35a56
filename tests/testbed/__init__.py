"""A real Kubernetes on this machine for tests, with one file per part; README.md says how to use it."""
