"""The prerequisites of containers on a machine, checked first and reported all at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.testbed.errors import TestbedError

# What each Debian package is looked up by.
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "conmon": "conmon",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iproute2": "ip",
    "iptables": "iptables-restore",
    "debootstrap": "debootstrap",
    "buildah": "buildah",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing() -> list[str]:
    """Return one line, with its remedy, for each missing prerequisite of the testbed."""
    lines = []
    if os.geteuid() != 0:
        lines.append("it needs root (containers, mounts, a network bridge): run the tests as root")
    if packages := missing_packages():
        lines.append(f"Debian packages are missing: {' '.join(packages)}; run scripts/cluster-packages")
    if "overlay" not in Path("/proc/filesystems").read_text().split():
        lines.append("the kernel has no overlay file system: run `modprobe overlay`")
    return lines


def missing_packages() -> list[str]:
    """Return the Debian packages whose program is missing."""
    return [name for name, probe in PACKAGES.items() if shutil.which(probe, path=_SYSTEM_PATH) is None]


def require() -> None:
    """Raise TestbedError with every missing thing, or do nothing."""
    if lines := missing():
        raise TestbedError("the testbed can't run on this machine: " + "; ".join(lines))
