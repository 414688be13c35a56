"""Runs the requested tiers of tests, and prints how each ended or why it was skipped.

With ``CI=true`` a tier that is skipped although the machine could run it is a failure.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from scripts.tiers import PROJECT, Command, Tier, read_command_line


class Result(NamedTuple):
    """How a tier ended: passed, FAILED or skipped, with details."""

    tier: Tier
    ended: str
    note: str


class Lanes:
    """Runs some tiers one after the other, their output as it comes, and all background tiers at the same time."""

    def __init__(self) -> None:
        self._unread: queue.SimpleQueue[str] = queue.SimpleQueue()  # what background tiers have printed

    def run(self, tiers: Sequence[Tier]) -> list[Result]:
        """The results of all tiers, in the order in which they were named."""
        background = [tier for tier in tiers if tier.background and len(tiers) > 1]
        with ThreadPoolExecutor(max(1, len(background))) as pool:
            others = {tier.name: pool.submit(self._in_background, tier) for tier in background}
            results = [self._live(tier) for tier in tiers if tier not in background]
            if running := [name for name, other in others.items() if not other.done()]:
                print(f"\n== waiting for {' and '.join(running)} in the background", flush=True)
            results += [other.result() for other in others.values()]
        self._show_unread()
        return sorted(results, key=lambda result: tiers.index(result.tier))

    def _live(self, tier: Tier) -> Result:
        self._show_unread()
        if (reason := tier.missing()) is not None:
            return Result(tier, "left out", reason)
        print(f"\n== {tier.name}: {tier.about}", flush=True)
        return _result(tier, lambda command: subprocess.run(command, cwd=PROJECT).returncode)

    def _in_background(self, tier: Tier) -> Result:
        if (reason := tier.missing()) is not None:
            return Result(tier, "left out", reason)
        printed = [f"\n== {tier.name}: {tier.about} (ran in the background)"]

        def quietly(command: Command) -> int:
            done = subprocess.run(
                command, cwd=PROJECT, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            printed.append(done.stdout)
            return done.returncode

        result = _result(tier, quietly)
        self._unread.put("\n".join(printed))
        return result

    def _show_unread(self) -> None:
        while not self._unread.empty():
            print(self._unread.get(), flush=True)


def _result(tier: Tier, run: Callable[[Command], int]) -> Result:
    """Run a tier's commands, those behind a failed one too."""
    began = time.monotonic()
    failed = [command for command in tier.commands if run(command)]
    spent = f"{time.monotonic() - began:.0f} s"
    return Result(tier, "FAILED", f"{spent}: {' '.join(failed[0])}") if failed else Result(tier, "passed", spent)


def main() -> int:
    """Run the chosen tiers; 0 when all that ran have passed, and CI skipped none that it could run."""
    words = read_command_line()
    results = Lanes().run(words.chosen)
    print("\n== tiers")
    for tier, ended, note in results:
        print(f"{tier.name:<9} {ended:<9} {note}")
    if not (words.all or words.rest or words.nightly or words.tiers):
        print(
            "more: ./scripts/test --all adds the rest of these tiers, the report page in Chromium, and a Kubernetes on"
            "\n      this machine (needs root, installs Debian packages); ./scripts/test --nightly runs the long ones"
        )
    passed = sum(result.ended == "passed" for result in results)
    failed = sum(result.ended == "FAILED" for result in results)
    skipped = len(results) - passed - failed
    if skipped and os.environ.get("CI") == "true" and os.geteuid() == 0:
        failed += skipped
        print("CI=true as root: skipped tiers count as failed")
    print(f"tiers: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
