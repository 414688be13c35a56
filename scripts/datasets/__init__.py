"""One data set of MovieLens' shape, by spotmpi and with Dask by hand; `scripts/speed_datasets.py` compares them."""
