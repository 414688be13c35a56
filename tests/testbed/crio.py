"""CRI-O on a folder of its own: the runtime that mounts artifacts of a registry in pods, which containerd does not."""

from __future__ import annotations

from pathlib import Path

from tests.testbed.daemon import SYSTEM_PATH, Daemon
from tests.testbed.errors import TestbedError, run_command
from tests.testbed.programs import module_file, program

_CONFIGURATION = """\
[crio]
root = "{folder}/images"
runroot = "{folder}/run"
storage_driver = "overlay"
log_dir = "{folder}/pod-logs"
version_file = "{folder}/version"
clean_shutdown_file = "{folder}/clean-shutdown"

[crio.api]
listen = "{folder}/crio.sock"

[crio.runtime]
default_runtime = "runc"
conmon_cgroup = "pod"
cgroup_manager = "cgroupfs"
container_exits_dir = "{folder}/exits"
container_attach_socket_dir = "{folder}/attach"
namespaces_dir = "{folder}/namespaces"
pinns_path = "{folder}/pinns"
irqbalance_config_restore_file = "disable"

[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
runtime_root = "{folder}/runc"
monitor_path = "/usr/bin/conmon"

[crio.image]
pause_image = "{pause}"
pause_command = "/usr/bin/sleep infinity"
signature_policy = "{folder}/policy.json"
signature_policy_dir = "{folder}/policies"
insecure_registries = ["{registry}"]

[crio.network]
network_dir = "{folder}/cni"
plugin_dirs = ["/usr/lib/cni"]

[crio.nri]
enable_nri = false
"""

_CGROUPS = "/sys/fs/cgroup"


class Crio:
    """A container runtime whose every file is below `folder`; it pulls `pause` and pods' images without TLS."""

    def __init__(self, folder: Path, name: str, pause: str, *, outlives_us: bool = False) -> None:
        self.folder = folder
        self.socket = folder / "crio.sock"
        self.blobs = folder / "images" / "artifacts" / "blobs" / "sha256"  # the layers of artifacts, as they are
        folder.mkdir(parents=True, exist_ok=True)
        registry = pause.partition("/")[0]
        configuration = folder / "crio.conf"
        configuration.write_text(_CONFIGURATION.format(folder=folder, pause=pause, registry=registry))
        (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        command = [program("crio"), "--config", configuration, "--config-dir", ""]
        self.daemon = Daemon(name, [*self._with_mounted_cgroups(), *command], folder.parent, outlives_us=outlives_us)

    def start(self, limit: float = 60.0) -> None:
        """Start it and wait until it answers."""
        run_command(["gcc", "-O2", "-o", self.folder / "pinns", *module_file("crio", "src").glob("*.c")])
        self.daemon.start()
        self.daemon.wait_until_ready(self._health, limit)

    def stop(self) -> None:
        """End it; containers go on, as they do when the real one is restarted."""
        self.daemon.stop()

    def _with_mounted_cgroups(self) -> list[str | Path]:
        """Return the begin of a command for which the kernel has only the cgroup controllers that this machine mounts.

        CRI-O would limit huge pages, and no container start, where the kernel has their controller and none is mounted.
        """
        known = self.folder / "cgroups"
        lines = Path("/proc/cgroups").read_text().splitlines(keepends=True)
        known.write_text("".join(each for each in lines if each[0] == "#" or Path(_CGROUPS, each.split()[0]).is_dir()))
        script = 'mount --bind "$0" /proc/cgroups && exec "$@"'
        return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, known]

    def _health(self) -> str:
        try:
            run_command([program("crio"), "status", "--socket", self.socket, "info"], {"PATH": SYSTEM_PATH}, limit=10)
        except TestbedError as error:
            return str(error)
        return ""
