"""A fake Kubernetes API over HTTP, and the objects in it."""
