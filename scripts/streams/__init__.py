"""The same prediction three ways: by a stream of spotmpi, by Dask by hand, and over raw ZeroMQ."""
