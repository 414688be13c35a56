"""What a disk does not tell is not a no: `exists` and its kin answer False for a stale handle and an I/O error as well.

A run whose folder cannot be read for a moment is not a run that was deleted, and an environment whose files cannot be
read is not one to install again. `os.path.exists`, `isfile` and `isdir` do that on every version of Python, and so does
`os.walk` without `onerror`; `Path.exists` and its kin and `Path.glob` do on newer ones (3.14, 3.13). The functions of
`agent.files` raise such errors; every other way has its reason in the table below.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
ROOMS = (
    *("agent", "core", "runs", "backends", "api", "cli", "data", "images", "metrics"),
    *("checkpoint", "entries", "programs", "spec", "streams", "study"),
)

_FUNCTIONS = {"exists", "isfile", "isdir", "lexists", "islink", "ismount"}  # of os.path
_METHODS = {"exists", "is_file", "is_dir", "is_symlink", "glob", "rglob"}  # of paths
_TAR = {"member"}  # whose kinds are asked for by methods of similar names

OWN = "files of spotmpi itself, or of an image beside it"
CHECK = "only refuses or words a message: what it takes for missing is opened next, or is never overwritten"
FRESH = "files that this process has just written"
LOCAL = "a file system of the kernel or of the pod alone"

PLACES = {
    "jobs/spotmpi/agent/__main__.py": (1, "a TMPDIR that cannot be seen is as good as none"),
    "jobs/spotmpi/agent/checkpoint_files.py": (1, "a checkpoint that is not seen costs the work since an older one"),
    "jobs/spotmpi/agent/files.py": (1, "what is left of a removed folder, whose removal failed otherwise"),
    "jobs/spotmpi/agent/fork_server.py": (1, "what is not seen is left to a new interpreter"),
    "jobs/spotmpi/api/models.py": (
        7,
        "what is not seen is refused, or an older checkpoint is kept, which the answer names",
    ),
    "jobs/spotmpi/api/runs.py": (1, CHECK),
    "jobs/spotmpi/api/simulation.py": (2, CHECK),
    "jobs/spotmpi/agent/local_ranks.py": (1, "accelerate looks for its file of defaults in the same way"),
    "jobs/spotmpi/agent/node.py": (1, LOCAL),
    "jobs/spotmpi/agent/processes.py": (1, LOCAL),
    "jobs/spotmpi/agent/slurm.py": (
        3,
        "looked for again and again, or at the end, where the next attempt stays in the job, or finds the recorded end",
    ),
    "jobs/spotmpi/agent/ssh.py": (1, LOCAL),
    "jobs/spotmpi/agent/replicas.py": (2, "looked for again and again, and files of workers that are copied over"),
    "jobs/spotmpi/agent/connection.py": (1, LOCAL),
    "jobs/spotmpi/api/datasets.py": (1, "without it the manifest lacks the commit, and nothing is decided by that"),
    "jobs/spotmpi/backends/kubernetes/client/kubeconfig.py": (1, LOCAL),
    "jobs/spotmpi/backends/kubernetes/client/kubeconfig_entries.py": (
        2,
        "the cache, and a program of ours",
    ),
    "jobs/spotmpi/backends/downloads.py": (6, f"{FRESH}; and what is replaced"),
    "jobs/spotmpi/backends/kubernetes/pull.py": (2, f"{FRESH}; and what is replaced"),
    "jobs/spotmpi/backends/local/backend.py": (1, "processes of this machine"),
    "jobs/spotmpi/backends/local/machine.py": (8, CHECK),
    "jobs/spotmpi/backends/targets.py": (3, CHECK),
    "jobs/spotmpi/backends/slurm/files.py": (4, f"{FRESH}; and what the next look copies"),
    "jobs/spotmpi/checkpoint/store.py": (1, "what is not seen is written again"),
    "jobs/spotmpi/cli/completion.py": (2, "what is not seen is not offered"),
    "jobs/spotmpi/cli/pull.py": (2, "a size that is shown"),
    "jobs/spotmpi/cli/run.py": (2, CHECK),
    "jobs/spotmpi/cli/up.py": (1, CHECK),
    "jobs/spotmpi/core/archives.py": (1, OWN),
    "jobs/spotmpi/core/code_folder.py": (7, CHECK),
    "jobs/spotmpi/core/names.py": (2, OWN),
    "jobs/spotmpi/data/local_source.py": (5, CHECK),
    "jobs/spotmpi/images/build.py": (4, OWN),
    "jobs/spotmpi/images/environment.py": (11, f"{OWN}; a Python of pyenv that is not seen is not used"),
    "jobs/spotmpi/images/wheels.py": (1, FRESH),
    "jobs/spotmpi/programs/pool/driver.py": (2, "looked for again and again"),
    "jobs/spotmpi/programs/pool/execution.py": (1, FRESH),
    "jobs/spotmpi/programs/pool/files.py": (1, "the cache of Python"),
    "jobs/spotmpi/programs/voc.py": (1, CHECK),
    "jobs/spotmpi/programs/weights.py": (1, CHECK),
    "jobs/spotmpi/runs/data_fingerprint.py": (1, CHECK),
    "jobs/spotmpi/spec/source.py": (3, CHECK),
    "jobs/spotmpi/spec/template.py": (4, f"{CHECK}; {OWN}; whether a folder is small enough for a line of `init`"),
    "jobs/spotmpi/streams/dataset.py": (1, "modules that are loaded"),
    "jobs/spotmpi/streams/part_files.py": (1, FRESH),
    "jobs/spotmpi/streams/second_build.py": (1, FRESH),
    "jobs/spotmpi/streams/sources.py": (3, "file systems of fsspec: `storage.file_system` gives those that raise"),
    "jobs/spotmpi/runs/fingerprint.py": (4, "runs whose code could not be read are shown as different"),
}


def _is_careless(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner, name = ast.unparse(node.func.value), node.func.attr
    if owner == "os.path":
        return name in _FUNCTIONS
    if owner == "os":
        return name == "access" or (name == "walk" and not any(each.arg == "onerror" for each in node.keywords))
    return name in _METHODS and owner.rpartition(".")[2] not in {"files", *_TAR}


def _places() -> Iterator[str]:
    for room in ROOMS:
        for path in sorted((PROJECT / "jobs" / "spotmpi" / room).rglob("*.py")):
            found = sum(map(_is_careless, ast.walk(ast.parse(path.read_text()))))
            yield from [str(path.relative_to(PROJECT))] * found


@pytest.mark.extensive("looks through all sources, for those who change them")
def test_nothing_is_decided_by_a_file_that_a_disk_does_not_show_but_for_the_reason_given() -> None:
    assert dict(Counter(_places())) == {name: count for name, (count, _) in PLACES.items()}


def test_what_takes_an_error_for_a_no_is_found() -> None:
    for text in (
        "os.path.exists(a)",
        "path.is_file()",
        "(a / b).exists()",
        "os.access(a, 4)",
        "os.walk(a)",
        "a.glob(b)",
    ):
        assert any(map(_is_careless, ast.walk(ast.parse(text)))), text
    for text in ("exists(a)", "files.exists(a)", "os.walk(a, onerror=f)", "member.isfile()", "mode(a) is None"):
        assert not any(map(_is_careless, ast.walk(ast.parse(text)))), text
