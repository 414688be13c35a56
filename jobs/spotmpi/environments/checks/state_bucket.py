"""Whether the bucket of Pulumi's state exists, is private and keeps versions."""

from __future__ import annotations

import os
from collections.abc import Iterator

from spotmpi.aws import state_bucket
from spotmpi.environments.checks.finding import Check, Finding, Subject

_NAME = "state bucket"


def bucket(subject: Subject) -> Iterator[Finding]:
    """What is wrong with the bucket that PULUMI_BACKEND_URL names, where it names one."""
    named = state_bucket.named_in(os.environ)
    if named is None:
        return
    found = state_bucket.condition(subject.aws, subject.region, named)
    if found is None:
        remedy = "`spotmpi up STACK` offers to make it"
        yield Finding(_NAME, "warning", f"there is no bucket {named.name} for Pulumi's state", remedy)
        return
    put = f"aws s3api {{}} --bucket {named.name} "
    if not found.private:
        yes = ",".join(f"{key}=true" for key in state_bucket.PRIVATE)
        command = put.format("put-public-access-block") + f"--public-access-block-configuration {yes}"
        yield Finding(_NAME, "warning", f"{named.name} may be made public", "block public access to it", command)
    if not found.versioned:
        command = put.format("put-bucket-versioning") + "--versioning-configuration Status=Enabled"
        remedy = "turn versioning on, so that a broken state can be put back"
        yield Finding(_NAME, "warning", f"{named.name} keeps no versions", remedy, command)
    if found.private and found.versioned:
        yield Finding(_NAME, "ok", f"{named.name} is private and keeps versions")


CHECKS = (Check(_NAME, bucket),)
