"""What the doctor found, a line each on stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from jobs.cloud.checks.finding import Finding
from jobs.cloud.rights import policy


def show_policy(wanted: str) -> None:
    """Print an IAM policy as JSON."""
    print(json.dumps(policy(wanted), indent=1))


def show(findings: Sequence[Finding], as_json: bool) -> None:
    """Print level, check and message of each finding, its remedy and command beneath; or a JSON list."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
        return
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print(f"{finding.level:<7}  {finding.check.ljust(width)}  {finding.message}")
        for more in (finding.remedy, finding.command):
            if more:
                print(f"{'':<7}  {'':<{width}}  -> {more}")
