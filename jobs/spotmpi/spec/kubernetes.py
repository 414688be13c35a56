"""The part of a job spec for a cluster: where and how its pods run."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

CONFIG_MAP = "configmap:"  # prefix of a template that is not in a file
_SIZE = r"^[0-9]{1,15}(Mi|Gi)$"


# The files of models do not have `from __future__ import annotations`: pydantic would compile each of them at a start.
class SpecModel(BaseModel):
    """A table of a spec: frozen, strict about types, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _without_zero_byte(path: str) -> str:
    if "\0" in path:
        raise ValueError("contains a zero byte, which no path can hold; remove it")
    return path


FilePath = Annotated[str, AfterValidator(_without_zero_byte)]


class Toleration(SpecModel):
    """A taint of nodes that the pods of a run tolerate."""

    key: str
    value: str | None = None
    effect: str | None = None


class Mount(SpecModel):
    """One more volume in every pod: exactly one of `claim`, `secret`, `config_map` and `empty` names it."""

    path: str
    claim: str | None = None
    secret: str | None = None
    config_map: str | None = None
    empty: str | None = Field(None, pattern=_SIZE)  # size limit of an empty folder on the node's own disk
    read_only: bool = False

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(source is not None for source in (self.claim, self.secret, self.config_map, self.empty)) != 1:
            raise ValueError('give exactly one of claim, secret, config_map and empty (a size such as "10Gi")')
        return self


class Kubernetes(SpecModel):
    """Where and how pods run; for the kubernetes backend only."""

    context: str | None = Field(
        None, description="context of the kubeconfig (default: its current one)", examples=["my-cluster"]
    )
    namespace: str | None = Field(
        None, description="namespace (default: the environment's, else the context's)", examples=["training"]
    )
    image: str | None = Field(
        None,
        description="reference to pull, such as registry/chainermn@sha256:... (default: the environment's build of "
        "`image`)",
        examples=["registry.example/chainermn:1"],
    )
    volume: str | None = Field(
        None,
        description="claim (RWX) that keeps runs, checkpoints and data (default: the environment's)",
        examples=["runs"],
    )
    mounts: list[Mount] = Field(
        [],
        description="more volumes: a claim, secret, config_map or empty folder at a path",
        examples=[[{"path": "/cache", "claim": "cache"}]],
    )
    exclusive: bool | None = Field(
        None, description="whether each pod has a node to itself (default: in an environment)", examples=[True]
    )
    node_groups: list[str] = Field(
        [], description="node groups of the environment (default: the first that the run fits)", examples=[["g5"]]
    )
    instance_type: str | None = Field(
        None, description="only nodes of this type, such as g5.xlarge", examples=["g5.xlarge"]
    )
    placement_group: bool | None = Field(
        None, description="only node groups that have one (true) or have none (false)", examples=[True]
    )
    node_selector: dict[str, str] = Field({}, description="labels that nodes must have")
    avoid: list[str] = Field([], description="names of nodes that get no pod of the run, such as one with a broken GPU")
    tolerations: list[Toleration] = Field([], description="taints of nodes that the pods tolerate")
    labels: dict[str, str] = Field({}, description="labels of JobSet, Jobs and pods")
    secrets: list[str] = Field([], description="Secrets whose keys become variables of every rank")
    secret_env: dict[str, str] = Field(
        {},
        description="variables of every rank, each from one SECRET/KEY",
        examples=[{"HF_TOKEN": "hugging-face/token"}],
    )
    pull_secrets: list[str] = Field([], description="Secrets for pulling the image")
    ssh_secret: str | None = Field(
        None, description="Secret with keys for SSH and TLS, for users who may not create Secrets", examples=["mpi-ssh"]
    )
    queue: str | None = Field(None, description="Kueue LocalQueue that admits the run", examples=["gpus"])
    shm: str = Field("1Gi", description="size of the memory-backed /dev/shm", pattern=_SIZE)
    templates: list[FilePath] = Field(
        [],
        description="pod templates merged over spotmpi's, in order: YAML files, or configmap:NAME",
        examples=[["pod.yaml", "configmap:our-pods"]],
    )
