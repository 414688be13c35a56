"""The sum of squares, computed by tasks of Ray."""

from __future__ import annotations

import os
import time

import ray


@ray.remote
def square(number: int) -> int:
    """A square."""
    return number * number


ray.init(address="auto")
while len(ray.nodes()) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.5)
print("sum", sum(ray.get([square.remote(number) for number in range(100)])), flush=True)
