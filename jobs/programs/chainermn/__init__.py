"""Training programs for ChainerMN."""
