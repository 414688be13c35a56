"""What runs in the pods of a worker pool: scheduler, workers, and their launcher on one machine."""
