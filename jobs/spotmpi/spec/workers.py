"""The workers of a run besides its ranks or its driver, those of a pool or of a stream; numbers of CPUs, prices."""

import re
from typing import Annotated, ClassVar

from pydantic import Field, PlainValidator

from spotmpi.agent.plan import POSTPROCESS, WORKER
from spotmpi.spec.kubernetes import SpecModel

MOST_DOLLARS = 1_000_000  # per node and hour: what is more is not a price
Price = Annotated[float, Field(gt=0, le=MOST_DOLLARS, allow_inf_nan=False)]

_TOO_MANY = 1e9  # what is more is no number of CPUs
_CPUS = 'write a number of CPUs such as 2 or 0.5, or in thousandths, such as "500m"; at least "1m"'


def number_of_cpus(value: object) -> int | float:
    """The number of CPUs that *value* says, an integer where it is whole; ValueError for anything else."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", value)):
        value = float(match[1]) / (1000 if match[2] else 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _TOO_MANY:
        raise ValueError(_CPUS)
    if millicores(value) < 1 or abs(value * 1000 - millicores(value)) > 1e-6:  # no finer than Kubernetes has them
        raise ValueError(_CPUS)
    return int(value) if value == int(value) else float(value)


def millicores(cpus: float, count: int = 1) -> int:
    """*count* times so many CPUs, in thousandths of one."""
    return round(cpus * 1000) * count


def quantity(cpus: float, count: int) -> str:
    """*count* times so many CPUs, as Kubernetes writes them: ``"2"`` or ``"500m"``."""
    whole, rest = divmod(millicores(cpus, count), 1000)
    return f"{millicores(cpus, count)}m" if rest else str(whole)


def mebibytes(size: str) -> float:
    """MiB of a size such as ``"4Gi"``."""
    return float(size[:-2]) * {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024}[size[-2:]]


Count = Annotated[int, Field(ge=1)]
Cpus = Annotated[int | float, PlainValidator(number_of_cpus)]
Memory = Annotated[str, Field(pattern=r"^[0-9]{1,15}(\.[0-9]+)?(Ki|Mi|Gi)$")]


class Workers(SpecModel):
    """Workers that are restarted each by itself, each one process with resources of its own, on a cluster in a pod."""

    table: ClassVar[str]  # of the spec
    role: ClassVar[str] = WORKER

    count: Count = Field(1, description="number of workers", examples=[4])
    cpu: Cpus = Field(1, description='CPUs of each worker, such as 2, 0.5 or "500m"')
    memory: Memory | None = Field(None, description='memory of each worker, such as "4Gi"', examples=["4Gi"])
    node_groups: list[str] = Field(
        [], description="node groups of the environment that workers may use", examples=[["cpu"]]
    )

    @property
    def gpus(self) -> int:
        """GPUs of each worker."""
        return 0


class Pool(Workers):
    """The workers of a pool, which execute the calls of a driver, one at a time."""

    table = "pool"

    count: Count = Field(description="number of workers", examples=[4])
    gpu: int = Field(0, ge=0, description="GPUs of each worker")

    @property
    def gpus(self) -> int:
        """GPUs of each worker."""
        return self.gpu


class StreamWorkers(Workers):
    """The workers of a stream, which prepare batches."""

    table = "stream.workers"

    image: str | None = Field(
        None,
        description="reference of the image of their pods (default: that of the ranks), with the same Python and Dask",
        examples=["registry/stage:1"],
    )
    price: Price | None = Field(None, description="US dollars per worker and hour (default: `price`)", examples=[0.1])


class PostprocessWorkers(StreamWorkers):
    """The workers of a stream's postprocess, where it has its own."""

    table = "stream.postprocess_workers"
    role = POSTPROCESS
