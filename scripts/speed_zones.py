"""Measures `spotmpi zones` for 10 types in 3 regions where every call to AWS takes 200 ms.

    scripts/speed-zones [--runs 10] [--latency 0.2] [--json]

Real boto3 clients check parameters and page; signing, sending and parsing are a stub that sleeps. Each run creates its
clients again, as a command does; importing boto3 is measured separately, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from spotmpi.environments.zones.comparison import compare_zones
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.market import NOW

TARGET = 5.0
REGIONS = ("us-east-1", "us-west-2", "eu-west-1")
TYPES = tuple(
    f"g{family}.{size}" for family in ("4dn", "5") for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge")
)


def main() -> None:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="how often to measure each")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds that each call takes")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    options = parser.parse_args()
    comparisons, imports, calls = [], [], 0
    for _ in range(options.runs):
        seconds, calls = _compare(options.latency)
        comparisons.append(seconds)
        imports.append(_import())
    total = statistics.median(comparisons) + statistics.median(imports)
    figures = {
        "comparison_seconds": {
            "median": statistics.median(comparisons),
            "least": min(comparisons),
            "most": max(comparisons),
        },
        "import_seconds": {"median": statistics.median(imports)},
        "calls": calls,
        "one_after_another_seconds": calls * options.latency,
        "target_seconds": TARGET,
        "met": total < TARGET,
    }
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{len(TYPES)} types x {len(REGIONS)} regions, {calls} calls of {options.latency} s, {options.runs} runs")
    print(f"zones   median {statistics.median(comparisons):.2f} s ({min(comparisons):.2f} to {max(comparisons):.2f})")
    print(f"import  median {statistics.median(imports):.2f} s (boto3 and spotmpi, in a new process)")
    result = "met" if total < TARGET else "MISSED"
    print(
        f"both    {total:.2f} s, target under {TARGET:.0f} s: {result}; "
        f"one call after another: {calls * options.latency:.1f} s"
    )


def _compare(latency: float) -> tuple[float, int]:
    account = FakeAccount()
    account.ec2.enabled = dict.fromkeys(REGIONS, True)
    account.ec2.zones = {
        region: {f"{region}{letter}": f"{region}-az{number}" for number, letter in enumerate("abcd", 1)}
        for region in REGIONS
    }
    account.ec2.types = dict.fromkeys(TYPES, (4, 1, True, False))
    account.ec2.spot_prices = dict.fromkeys(TYPES, 0.4)
    account.pricing.on_demand |= dict.fromkeys(TYPES, 1.0)
    account.delay = latency
    begin = time.perf_counter()
    comparison = compare_zones(TYPES, 8, REGIONS, account, NOW)
    seconds = time.perf_counter() - begin
    assert len(comparison.rows) == len(TYPES) * 12 and not comparison.unknown
    return seconds, len(account.requests)


def _import() -> float:
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import boto3, spotmpi.environments.zones.comparison, spotmpi.cli.zones"],
        check=True,
    )
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
