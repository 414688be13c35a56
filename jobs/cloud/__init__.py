"""Questions to AWS and their answers as plain values: prices, zones, quotas. Nothing here knows Pulumi."""
