"""Checks an image while it is built, and writes down in /opt/spotmpi/image.json what it can run on.

Every framework and MPI is imported once; the build fails with all problems named when CUDA, NCCL, sshd or the user of
the image do not fit together. Standard library only, apart from what it checks.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

RECORD = Path("/opt/spotmpi/image.json")
SSHD = "/usr/sbin/sshd"
USER = "spotmpi"

Facts = dict[str, Any]


def problems(facts: Facts) -> list[str]:
    """Give one line, with its remedy, for each thing that does not fit together."""
    return [*cuda_problems(facts), *login_problems(facts)]


def cuda_problems(facts: Facts) -> list[str]:
    """Give what is wrong between the CUDA of the base, of the framework and of the NCCL that gets loaded."""
    base, framework = facts["cuda_of_base"], facts["cuda_of_framework"]
    found = []
    if framework and facts["needs_cuda_of_base"] and not base:
        found.append(f"CUDA {framework} is needed but the base has none: set BASE_IMAGE to a CUDA one, or REQUIREMENTS")
    if base and not framework:
        found.append(f"the base has CUDA {base} but no framework that uses it: set REQUIREMENTS to a lock for GPUs")
    if base and framework and major(base) != major(framework):
        found.append(f"the base has CUDA {base}, the framework needs {framework}: set BASE_IMAGE to CUDA {framework}")
    if framework and facts["nccl_wanted"] and not facts["nccl_loaded"]:
        found.append(f"NCCL {facts['nccl_wanted']} is needed but can't be loaded: the base must contain libnccl2")
    if facts["nccl_loaded"] and facts["nccl_wanted"] and major(facts["nccl_loaded"]) != major(facts["nccl_wanted"]):
        found.append(f"NCCL {facts['nccl_loaded']} is loaded but {facts['nccl_wanted']} is needed: change the base")
    if framework and not facts["architectures"]:
        found.append("no GPU kernels are available: the framework was built without them, or libnvrtc can't be loaded")
    if framework and facts.get("cudnn", "unused") is None:
        found.append("cuDNN 8 can't be loaded, and convolutions would be very slow: set BASE_IMAGE to one with cudnn8")
    return found


def login_problems(facts: Facts) -> list[str]:
    """Give what would keep sshd from running, or the user from logging in, in a restricted pod."""
    found = []
    if facts["sshd_capabilities"]:
        found.append(f"{SSHD} has file capabilities, so it can't start where all are dropped: run setcap -r on it")
    if facts["user"] != [1000, 1000]:
        found.append(f"user {USER} has ids {facts['user']}, storage expects 1000:1000: correct useradd")
    if not facts["shell"] or not os.access(facts["shell"], os.X_OK):
        found.append(f"user {USER} has no working shell ({facts['shell']!r}): sshd would refuse it")
    if facts["password"].startswith("!"):
        found.append(f"user {USER} is locked: sshd without PAM would refuse it; give it the password '*'")
    return found


def major(version: str) -> str:
    """Give the part of a version before its first dot."""
    return version.partition(".")[0]


def gather(framework: str) -> Facts:
    """Give everything that the checks and the record need; an import that fails ends the build with its traceback."""
    facts: Facts = {
        "image": framework,
        "python": sys.version.split()[0],
        "cuda_of_base": os.environ.get("CUDA_VERSION"),
    }
    facts.update(chainermn_facts() if framework == "chainermn" else pytorch_facts())
    facts.update(mpi_facts())
    facts.update(login_facts())
    return facts


def chainermn_facts() -> Facts:
    """Give the versions of Chainer and, where it is installed, of CuPy and what it loads."""
    importlib.import_module("chainermn")
    facts: Facts = {"versions": versions("chainer", "numpy", "mpi4py", "openmpi"), "needs_cuda_of_base": True}
    try:
        cupy = importlib.import_module("cupy")
    except ModuleNotFoundError:
        return {**facts, **NO_CUDA}
    facts["versions"]["cupy"] = cupy.__version__
    nccl, cudnn = importlib.import_module("cupy.cuda.nccl"), importlib.import_module("cupy.cuda.cudnn")
    return {
        **facts,
        **nvrtc_facts(),
        "nccl_wanted": dotted(nccl.get_build_version()) if nccl.available else "2",
        "nccl_loaded": dotted(nccl.get_version()) if nccl.available else None,
        "cudnn": cudnn.getVersion() if cudnn.available else None,
    }


def nvrtc_facts() -> Facts:
    """Give CuPy's CUDA and, from the compiler that the base brings, the GPU architectures it makes kernels for."""
    wheel = next(name for name in installed() if name.startswith("cupy-cuda"))
    built_for = re.sub(r"\D", "", wheel)
    nvrtc = importlib.import_module("cupy.cuda").nvrtc
    try:
        version = nvrtc.getVersion()
    except RuntimeError:
        # There is no CUDA of that kind to load; the comparison with the base says so.
        return {"cuda_of_framework": built_for, "architectures": []}
    architectures = [f"sm_{number}" for number in nvrtc.getSupportedArchs()]
    return {"cuda_of_framework": ".".join(map(str, version)), "architectures": architectures}


def pytorch_facts() -> Facts:
    """Give the versions of PyTorch and of the CUDA and NCCL that its wheel was built for and brings along."""
    torch = importlib.import_module("torch")
    importlib.import_module("torchvision")
    facts: Facts = {
        "versions": versions("torch", "torchvision", "numpy", "mpi4py", "openmpi"),
        "needs_cuda_of_base": False,
    }
    if torch.version.cuda is None:
        return {**facts, **NO_CUDA}
    wanted = ".".join(map(str, torch.cuda.nccl.version()))
    bundled = next((name for name in installed() if name.startswith("nvidia-nccl")), None)
    return {
        **facts,
        "cuda_of_framework": torch.version.cuda,
        "nccl_wanted": wanted,
        "nccl_loaded": importlib.metadata.version(bundled) if bundled else None,
        # Unlike torch.cuda.get_arch_list this tells the compiled ones without a GPU, too.
        "architectures": torch._C._cuda_getArchFlags().split(),
    }


NO_CUDA: Facts = {"cuda_of_framework": None, "nccl_wanted": None, "nccl_loaded": None, "architectures": []}


def mpi_facts() -> Facts:
    """Give the MPI library's version and whether it sends from GPU memory."""
    mpi = importlib.import_module("mpi4py.MPI")
    folder = Path(sys.executable).parent
    parsed = subprocess.run(
        [folder / "ompi_info", "--parsable", "--all"],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=True,
        env=os.environ,
    ).stdout
    return {
        "mpi": mpi.Get_library_version().splitlines()[0].split(",")[0],
        "mpi_cuda_aware": "mpi_built_with_cuda_support:value:true" in parsed,
    }


def login_facts() -> Facts:
    """Give what decides whether sshd starts and the user may log in; reads files that only root may."""
    accounts = {
        line.split(":")[0]: line.split(":") for line in Path("/etc/passwd").read_text(encoding="utf-8").splitlines()
    }
    passwords = {
        line.split(":")[0]: line.split(":")[1] for line in Path("/etc/shadow").read_text(encoding="utf-8").splitlines()
    }
    account = accounts.get(USER, ["", "", "-1", "-1", "", "", ""])
    return {
        "user": [int(account[2]), int(account[3])],
        "shell": account[6],
        "password": passwords.get(USER, "!"),
        "sshd_capabilities": "security.capability" in os.listxattr(SSHD),
    }


def installed() -> list[str]:
    """Give the names of all installed distributions, in order."""
    return sorted(each.metadata["Name"].lower() for each in importlib.metadata.distributions())


def versions(*names: str) -> dict[str, str]:
    """Give the installed versions of these distributions."""
    return {name: importlib.metadata.version(name) for name in names}


def dotted(nccl: int) -> str:
    """Give NCCL's numeric version, such as 21903, as 2.19.3."""
    return f"{nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}"


def main() -> int:
    """Check the image that this runs in; 0 when all fits, 1 with the problems on stderr."""
    facts = gather(sys.argv[1])
    if found := problems(facts):
        print(*(f"check_image: {line}" for line in found), sep="\n", file=sys.stderr)
        return 1
    del facts["password"]
    RECORD.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(RECORD.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
