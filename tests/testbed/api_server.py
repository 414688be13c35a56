"""An API server alone: it checks, defaults and stores objects, and nothing runs. No root, no containers."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.testbed.control_plane import ControlPlane
from tests.testbed.kubernetes import Kubernetes


@contextlib.contextmanager
def running_api_server() -> Iterator[Kubernetes]:
    """Return a Kubernetes API without controllers and nodes, which is stopped at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="spotmpi-api-"))
    plane = ControlPlane(folder, alone=True)
    try:
        plane.start()
        yield Kubernetes(plane.kubeconfig)
    finally:
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)
