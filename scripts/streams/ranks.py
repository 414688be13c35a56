"""Many ranks in one process, whose chunks are empty: `python -m scripts.streams.ranks URL TLS RANKS`.

It prints a line when all are connected, and begins with the first line of stdin. To each further line it answers with
the number of calls so far.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque

from spotmpi.streams.engine import Engine, Task

WINDOW = 8  # calls under way of each rank


def pull(engine: Engine, counts: list[int], rank: int) -> None:
    """Send calls and take their results in order, as a rank does, and count them."""
    under_way: deque[Task] = deque()
    while True:
        while len(under_way) < WINDOW:
            under_way.append(engine.submit("batch 0", time.sleep, 0))
        under_way.popleft().result()
        counts[rank] += 1


def main(url: str, tls: str, ranks: str) -> None:
    """Pull with so many ranks."""
    engines = [Engine(url, tls) for _ in range(int(ranks))]
    counts = [0] * len(engines)
    print("connected", flush=True)
    sys.stdin.readline()
    for rank, engine in enumerate(engines):
        threading.Thread(target=pull, args=(engine, counts, rank), daemon=True).start()
    for _ in sys.stdin:
        print(sum(counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
