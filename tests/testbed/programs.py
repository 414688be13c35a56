"""The pinned programs that the testbed runs, built by scripts/tools on first use."""

from __future__ import annotations

from pathlib import Path

from tests.testbed.errors import TestbedError
from tests.tools import REPOSITORY as REPOSITORY
from tests.tools import ToolError, bin_folder

# etcd's module calls its program after the package that holds it.
_PROGRAM_NAMES = {"etcd": ("etcd", "server")}
_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")


def tool_folder(tool: str) -> Path:
    """Return the built tool's folder, with `bin` and perhaps `files`; TestbedError if it can't be built."""
    try:
        return bin_folder(tool).parent
    except ToolError as error:
        raise TestbedError(str(error)) from error


def program(name: str) -> Path:
    """Return the path of a pinned program such as `kubelet` or `etcd`."""
    tool, binary = ("kubernetes", name) if name in _KUBERNETES else _PROGRAM_NAMES.get(name, (name, name))
    return tool_folder(tool) / "bin" / binary


def module_file(tool: str, name: str) -> Path:
    """Return a file or folder that scripts/tools copied out of the tool's Go module."""
    path = tool_folder(tool) / "files" / name
    if not path.exists():
        raise TestbedError(f"{path} is missing; name it under `files` in scripts/tools.d/{tool}/tool.toml")
    return path
