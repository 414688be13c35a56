"""A load test of a web server: pool A drives it, each worker at its own rate, while pool B checks its answers.

python3 load_test.py URL --seconds 30 --rates 10 20 50        a worker of pool A for each rate, in requests per second

The server answers in JSON, and URL?value=7 with {"value": "7"}: let `check` expect what yours answers.
--pool FILE is a spec with the image and other settings of both pools, SPOTMPI_ON the environment that they run in.
"""

import argparse
import json
import sys
import time
import urllib.request
from typing import Any

import spotmpi


def drive(rate: float, url: str, seconds: float) -> dict[str, float]:
    """Send requests at this rate; the number that succeeded, and the slowest in seconds."""
    begin = time.monotonic()
    done, slowest = 0, 0.0
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, begin + number / rate - time.monotonic()))
        before = time.monotonic()
        fetch(url)
        done, slowest = done + 1, max(slowest, time.monotonic() - before)
    return {"rate": rate, "requests": done, "slowest": round(slowest, 3)}


def check(number: int, url: str) -> str | None:
    """What is wrong with one answer under load, or None."""
    answer = fetch(f"{url}?value={number}")
    return None if answer == {"value": str(number)} else f"{number}: {answer}"


def fetch(url: str) -> Any:
    """The JSON that the server answers."""
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def main() -> None:
    """Bring both pools up, check values until the load ends, and print both results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 20, 50])
    parser.add_argument("--pool", help="spec of both pools")
    options = parser.parse_args()

    errors: list[str] = []
    checked = 0
    with (
        spotmpi.pool(options.pool, workers=len(options.rates)) as load,
        spotmpi.pool(options.pool, workers=1) as checks,
    ):
        drivers = [
            worker.submit(drive, rate, options.url, options.seconds)
            for worker, rate in zip(load.workers, options.rates, strict=True)
        ]
        while not all(driver.done() for driver in drivers):
            numbers = range(checked, checked + 20)
            errors += filter(None, checks.map(check, numbers, [options.url] * len(numbers)))
            checked += len(numbers)
        for driver in drivers:
            print(json.dumps(driver.result()))
    print(f"{checked} values checked, {len(errors)} wrong", *errors[:10], sep="\n")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
