"""The stream of a job spec: batches that CPU workers prepare for the ranks of the run."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from spotmpi.core import wording
from spotmpi.core.errors import Problem
from spotmpi.spec.kubernetes import FilePath, SpecModel
from spotmpi.spec.workers import Count, PostprocessWorkers, StreamWorkers
from spotmpi.streams import topics
from spotmpi.streams.order import FORMATS, FUNCTION, Settings
from spotmpi.streams.topics import is_topic

_KEYS_OF_PROGRAMS = ("prefetch", "on_error", "debug", "workers")


class Stream(SpecModel):
    """Where batches come from, and how they are prepared; see docs/streams.md."""

    source: FilePath | None = Field(
        None,
        description="file, folder, pattern or URL of files; or module:function, called with a number",
        examples=["s3://set/*.parquet"],
    )
    split: str | None = Field(
        None, description='of a folder as Hugging Face lays it out, such as "train"', examples=["train"]
    )
    batch: Count | None = Field(
        None, description="rows of a batch (docs/streams.md says what a row of each format is)", examples=[4096]
    )
    epochs: Count = Field(1, description="how often the source is read")
    length: Count | None = Field(
        None, description="batches per epoch, if the source is module:function", examples=[256]
    )
    prepare: str | None = Field(
        None,
        description="module:function that workers call with rows and seed of each batch",
        examples=["flow:prepare"],
    )
    postprocess: str | None = Field(
        None,
        description="module:function that workers call with result and seed of each batch of a prediction",
        examples=["flow:postprocess"],
    )
    write: str | None = Field(
        None,
        description='how predictions are written: "parquet", "jsonl", "files", kafka://BROKER:9092/TOPIC, or '
        "module:function(results, number)",
        examples=["parquet"],
    )
    prefetch: Count = Field(8, description="number of chunks of batches in flight for each rank")
    seed: int = Field(0, ge=0, description="determines the order of batches and the seed of each batch")
    shuffle: bool = Field(False, description="whether each epoch has its rows in another order, mixed within blocks")
    shuffle_block: Count = Field(16384, description="rows of a block of `shuffle`, which each worker keeps in memory")
    shuffle_batches: bool = Field(
        False, description="whether each epoch has its batches in another order; the rows of a batch stay together"
    )
    last_batch: Literal["drop", "pad", "keep"] = Field(
        "drop",
        description="an incomplete last batch and global step: drop, pad with the first rows and batches, or keep",
    )
    on_error: Literal["fail", "skip"] = Field(
        "fail", description="fail: a batch that cannot be prepared ends the run; skip: the next one replaces it"
    )
    debug: float = Field(
        0.0, ge=0, le=1, description="share of batches that a second worker prepares too, to compare; 0 is off"
    )
    workers: StreamWorkers = Field(
        StreamWorkers(), description="the CPU workers, in addition to the nodes of the ranks"
    )
    postprocess_workers: PostprocessWorkers | None = Field(
        None, description="CPU workers that only postprocess (default: those that prepare do it)"
    )

    @property
    def roles(self) -> tuple[StreamWorkers, ...]:
        """The workers of each role."""
        own = self.postprocess_workers
        return (self.workers,) if own is None else (self.workers, own)

    @property
    def settings(self) -> Settings:
        """What ranks and workers need of it."""
        values = self.model_dump(exclude={"workers", "postprocess_workers"})
        defaults = {"source": self.source or "", "batch": self.batch or 1, "length": self.length or 0}
        counts = {"workers": self.workers.count}
        if self.postprocess_workers is not None:
            counts["postprocess_workers"] = self.postprocess_workers.count
        return Settings(**{**values, **defaults, **counts})

    @property
    def functions(self) -> dict[str, str]:
        """The functions that it names, by key."""
        named = {key: getattr(self, key) for key in ("source", "prepare", "postprocess", "write")}
        return {key: name for key, name in named.items() if name and FUNCTION.fullmatch(name)}

    def program_problems(self) -> Iterator[Problem]:
        """Keys that do not fit to one of the training programs, which streams its own data set in its own order."""
        for key, field in type(self).model_fields.items():
            value = getattr(self, key)
            if key not in _KEYS_OF_PROGRAMS and value != field.default:
                yield Problem(f"stream.{key}", value, "a program streams its own data in its own order; remove it")

    def problems(self) -> Iterator[Problem]:
        """What does not fit together."""
        if self.source is None:
            yield Problem("stream.source", None, "name the files of which batches consist, or a function")
            return
        called = FUNCTION.fullmatch(self.source) is not None
        if self.split is not None and (called or is_topic(self.source)):
            yield Problem("stream.split", self.split, "is for a folder of files as the source; remove it")
        if is_topic(self.source) and (wrong := topics.problem(self.source)):
            yield Problem("stream.source", topics.shown(self.source), wrong)
        if called and self.length is None:
            yield Problem("stream.length", None, "a function as the source needs its number of batches in an epoch")
        if called and self.batch is not None:
            yield Problem("stream.batch", self.batch, "a function as the source decides itself how many rows it gives")
        if not called and self.length is not None:
            yield Problem("stream.length", self.length, "is for a function as the source; remove it")
        if not called and self.batch is None:
            option = wording.either("--set stream.batch=256, or --batch 256 of `spotmpi models predict`", "batch=256")
            yield Problem("stream.batch", None, f"give the number of rows of a batch, such as {option}")
        yield from self._shuffle_problems(called)
        if self.debug and self.workers.count == 1:
            remedy = "compares batches of two workers: set stream.workers.count to 2 or more, or remove it"
            yield Problem("stream.debug", self.debug, remedy)
        for key, value in (("prepare", self.prepare), ("postprocess", self.postprocess)):
            if value is not None and not FUNCTION.fullmatch(value):
                yield Problem(f"stream.{key}", value, f"use a function, such as flow:{key}")
        if self.postprocess_workers is not None and self.postprocess is None:
            remedy = 'have nothing to do: add postprocess = "flow:postprocess" to [stream], or remove the table'
            yield Problem("stream.postprocess_workers.count", self.postprocess_workers.count, remedy)
        yield from self._write_problems()

    def _write_problems(self) -> Iterator[Problem]:
        write = self.write
        if write is None or write in FORMATS or FUNCTION.fullmatch(write):
            return
        if not is_topic(write):
            formats = ", ".join(f'"{each}"' for each in FORMATS)
            remedy = f"use {formats}, a function, such as flow:write, or a topic, such as kafka://broker:9092/scores"
            yield Problem("stream.write", write, remedy)
        elif wrong := topics.problem(write):
            yield Problem("stream.write", topics.shown(write), wrong)

    def _shuffle_problems(self, called: bool) -> Iterator[Problem]:
        whole = "a function as the source gives whole batches" if called else "messages of a topic are read in sequence"
        if self.shuffle and (called or is_topic(self.source or "")):
            yield Problem("stream.shuffle", True, f"{whole}: use shuffle_batches")
        elif self.shuffle and self.shuffle_batches:
            yield Problem("stream.shuffle_batches", True, "shuffle mixes the rows of all batches; remove it")
        if not self.shuffle and self.shuffle_block != type(self).model_fields["shuffle_block"].default:
            yield Problem("stream.shuffle_block", self.shuffle_block, "is for shuffle = true; add that, or remove it")
