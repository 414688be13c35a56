"""containerd on a folder of its own, and the images in it."""

from __future__ import annotations

from pathlib import Path

from tests.testbed.daemon import SYSTEM_PATH, Daemon
from tests.testbed.errors import TestbedError, run_command
from tests.testbed.programs import tool_folder

# The namespace that the kubelet's side of containerd uses.
_NAMESPACE = "k8s.io"
_CONFIGURATION = """\
version = 2
# Of containerd 2.3, which unpacks no image where the kernel has this file system and the machine no mkfs.erofs.
disabled_plugins = ["io.containerd.snapshotter.v1.erofs"]
root = "{folder}/store"
state = "{folder}/run"

[grpc]
  address = "{folder}/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without the right to lower a process's out-of-memory score every sandbox would fail.
  restrict_oom_score_adj = true
  # Else killed pods would leave mounts below /var/run/netns.
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"

[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"""


class Containerd:
    """A container runtime whose every file is below `folder`; `pause` is the image that holds a pod's network.

    It is Debian's, or the pinned newer one that kubelets need from Kubernetes 1.37 on.
    """

    def __init__(
        self, folder: Path, name: str, pause: str, *, outlives_us: bool = False, is_newer: bool = False
    ) -> None:
        self.folder = folder
        self.socket = folder / "containerd.sock"
        folder.mkdir(parents=True, exist_ok=True)
        configuration = folder / "containerd.toml"
        configuration.write_text(_CONFIGURATION.format(folder=folder, pause=pause))
        self._environment = {"PATH": f"{tool_folder('containerd') / 'bin'}:{SYSTEM_PATH}" if is_newer else SYSTEM_PATH}
        arguments = ["containerd", "--config", configuration]
        self.daemon = Daemon(name, arguments, folder.parent, self._environment, outlives_us)

    def start(self, limit: float = 30.0) -> None:
        """Start it and wait until it answers."""
        self.daemon.start()
        self.daemon.wait_until_ready(self._health, limit)

    def stop(self) -> None:
        """End it; containers go on, as they do when the real one is restarted."""
        self.daemon.stop()

    def ctr(self, *arguments: str | Path, limit: float = 600.0) -> str:
        """Return what containerd's own client printed; TestbedError has its error output."""
        command = ["ctr", "--address", self.socket, "--namespace", _NAMESPACE, *arguments]
        return run_command(command, self._environment, limit)

    def image_digests(self) -> dict[str, str]:
        """Return the digest of every image's manifest by the image's name."""
        rows = [line.split() for line in self.ctr("images", "list").splitlines()[1:]]
        return {row[0]: row[2] for row in rows}

    def _health(self) -> str:
        if not self.socket.exists():
            return f"{self.socket} is not there"
        try:
            self.ctr("version", limit=5)
        except TestbedError as error:
            return str(error)
        return ""
