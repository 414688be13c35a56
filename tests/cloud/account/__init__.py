"""A fake AWS account, one class by service."""
