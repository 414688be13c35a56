"""CRI-O on a folder of its own: the runtime that mounts artifacts of a registry in pods, which containerd does not."""

from __future__ import annotations

import sys
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
runtime_path = "{folder}/runtime"
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

# CRI-O limits huge pages where the kernel has their cgroup controller; where none is mounted, as here, runc then fails.
_WITHOUT_HUGE_PAGES = """\
import json, os, sys
if "--bundle" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        container = json.load(file)
    container["linux"]["resources"].pop("hugepageLimits", None)
    with open(path, "w") as file:
        json.dump(container, file)
os.execv("/usr/sbin/runc", ["runc", *sys.argv[1:]])
"""


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
        runtime = folder / "runtime"
        runtime.write_text(f"#!{sys.executable} -I\n{_WITHOUT_HUGE_PAGES}")
        runtime.chmod(0o755)
        arguments = [program("crio"), "--config", configuration, "--config-dir", ""]
        self.daemon = Daemon(name, arguments, folder.parent, outlives_us=outlives_us)

    def start(self, limit: float = 60.0) -> None:
        """Start it and wait until it answers."""
        run_command(["gcc", "-O2", "-o", self.folder / "pinns", *module_file("crio", "src").glob("*.c")])
        self.daemon.start()
        self.daemon.wait_until_ready(self._health, limit)

    def stop(self) -> None:
        """End it; containers go on, as they do when the real one is restarted."""
        self.daemon.stop()

    def _health(self) -> str:
        try:
            run_command([program("crio"), "status", "--socket", self.socket, "info"], {"PATH": SYSTEM_PATH}, limit=60)
        except TestbedError as error:
            return str(error)
        return ""
