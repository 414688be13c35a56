"""Whether EKS still supports the Kubernetes version of a live environment, and the nodes keep up with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime

from spotmpi.environments import versions
from spotmpi.environments.checks.finding import Finding, Subject
from spotmpi.environments.checks.live import Live, of_live
from spotmpi.environments.versions import KubernetesVersion

# AWS announces the end of standard support at least 60 days before; an upgrade should fit in between two studies.
NOTICE = 90  # days


def kubernetes(subject: Subject, live: Live, today: date | None = None) -> Iterator[Finding]:
    """When standard support of the control plane's version ends: EKS upgrades it by itself then."""
    stack = live.environment.name.removeprefix("spotmpi-")
    running = versions.running(subject.aws, subject.region, live.environment.cluster)
    known = versions.offered(subject.aws, subject.region, [running.control_plane]).get(running.control_plane)
    yield _support(running.control_plane, known, f"spotmpi upgrade {stack}", today or datetime.now(UTC).date())
    behind = [each.name for each in running.node_groups if each.version != running.control_plane]
    if behind:
        message = f"{', '.join(behind)} are older than the control plane, {running.control_plane}"
        remedy = "replace them when no run is on them: EKS upgrades the control plane again only after that"
        yield Finding("node versions", "warning", message, remedy, f"spotmpi upgrade {stack}")


def _support(version: str, known: KubernetesVersion | None, command: str, today: date) -> Finding:
    title, remedy = "Kubernetes version", "upgrade at a time of your own: control plane, add-ons, then nodes"
    if known is None or known.standard_support_ends is None:
        return Finding(title, "warning", f"{version}: EKS does not tell how long it supports it", remedy, command)
    ends, left = known.standard_support_ends, (known.standard_support_ends - today).days
    if left < 0 or not known.in_standard_support:
        message = f"standard support of {version} ended on {ends}: EKS may upgrade the control plane at any time"
        return Finding(title, "error", message, remedy, command)
    if left <= NOTICE:
        message = f"standard support of {version} ends on {ends}, in {left} days: EKS upgrades the control plane then"
        return Finding(title, "warning", message, remedy, command)
    return Finding(title, "ok", f"{version}, in standard support until {ends}")


CHECKS = (of_live("Kubernetes version", kubernetes),)
