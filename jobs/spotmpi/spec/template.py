"""The commented spec that `spotmpi init` writes, made from the model so that it cannot fall behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.spec.job import JobSpec

_START = """\
# A spotmpi job spec. `spotmpi run THIS-FILE` runs it; what is commented out shows its default or a possible value.

image = "chainermn"       # a folder under images/
program = "digits"        # one of our programs; or: command = ["python", "train.py"]
args = ["--global-batch", "64", "--epochs", "5"]
nodes = 1
slots = 2                 # processes per node
"""
_SAID = frozenset({"image", "program", "command", "args", "nodes", "slots"})
_EXAMPLES: dict[str, Any] = {
    "name": "my-run",
    "data": "data/VOCdevkit",
    "code": "src",
    "memory": "4Gi",
    "path": "checkpoints",
    "run": "8h",
    "cost": 25.0,
    "price": 0.2,
    "pattern": r"step (?P<iteration>\d+) loss (?P<loss>\S+)",
    "samples_per_iteration": 64,
    "launcher": "mpirun",
    "context": "my-cluster",
    "namespace": "training",
    "image": "registry.example/chainermn:1",
    "volume": "runs",
    "spread": "node",
    "ssh_secret": "mpi-ssh",
    "queue": "gpus",
    "node_groups": ["g5"],
    "instance_type": "g5.xlarge",
    "placement_group": True,
    "forward": ["WANDB_API_KEY"],
    "mounts": [{"path": "/cache", "claim": "cache"}],
    "secret_env": {"HF_TOKEN": "hugging-face/token"},
    "templates": ["pod.yaml", "configmap:our-pods"],
}


def template() -> str:
    """The text of a commented spec: valid as it is, naming every key there is."""
    values = JobSpec().model_dump(mode="json")
    tops, parts = [], []
    for name, info in JobSpec.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            parts.append(_table(name, kind, values[name]))
        elif name == "env":
            parts.append('\n# Variables of every rank.\n# [env]\n# NCCL_DEBUG = "INFO"\n')
        elif name not in _SAID:
            tops.append(_line(name, info, values[name]))
    return _START + "".join(tops) + "".join(parts)


def write(path: Path) -> None:
    """Write the template to *path*; InputError when there is something already."""
    try:
        with path.open("x") as file:
            file.write(template())
    except FileExistsError:
        raise input_error("path", str(path), "exists already; name another file") from None
    except OSError as error:
        raise SpotmpiError(f"cannot write {path}: {error.strerror}") from error


def _table(name: str, model: type[BaseModel], values: dict[str, Any]) -> str:
    lines = [_line(key, info, values[key]) for key, info in model.model_fields.items()]
    about = (model.__doc__ or "").strip().splitlines()[0]
    return f"\n# {about}\n# [{name}]\n" + "".join(lines)


def _line(name: str, info: FieldInfo, value: object) -> str:
    shown = _inline(_EXAMPLES.get(name, value) if value in (None, "", [], {}) else value)
    text = f"# {name} = {shown}"
    about = info.description or ""
    return f"{text:<36}  # {about}\n" if about else f"{text}\n"


def _inline(value: object) -> str:
    """*value* as TOML on one line."""
    if isinstance(value, dict):
        inside = ", ".join(f"{key} = {_inline(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value)
