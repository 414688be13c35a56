"""The manifest of what a run has made, a model or the results of a prediction, from the record of the run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spotmpi import __version__
from spotmpi.backends.targets import Target
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.entries.manifest import FORMAT, Code, File, Input, Manifest, RawFile, Reference, digest_of
from spotmpi.entries.store import Store, read_reference, reference_in
from spotmpi.runs import fingerprint, reader
from spotmpi.runs.reader import RunState
from spotmpi.spec.source import read_toml


def run_manifest(
    kind: str, state: RunState, name: str, files: tuple[File, ...], parents: Sequence[Reference], store: Store
) -> Manifest:
    """The manifest of an entry with *files* of a run, made also from *parents*, as the run's record has the rest.

    Raises:
        SpotmpiError: the store does not have an entry that the run has read.
    """
    paths = RunPaths(Path(state.folder))
    summary: Mapping[str, Any] = reader.summary(paths) or {}
    work = reader.work(paths)
    read = _entries(state.id, work, store)
    content = [[file.path, file.sha256] for file in files]
    key = digest_of([FORMAT, content, state.id, sorted([each.kind, each.name, each.key] for each in parents)])
    code = work.get("code") or {}
    image = {**(work.get("image") or {}), **({"digest": state.container} if state.container else {})}
    hashes = fingerprint.own_files(code)
    # The result of a run, else its last scalars.
    values = summary.get("result") or state.scalars
    return Manifest(
        kind=kind,
        name=name,
        key=key,
        created=time.time(),
        files=files,
        parents=tuple(sorted({*parents, *read})),
        inputs=tuple(_inputs(paths, work)),
        code=Code(digest_of(hashes), values=hashes, commit=code.get("commit"), diff=code.get("diff"))
        if hashes
        else None,
        image={name: str(value) for name, value in image.items() if value} or None,
        run=state.id,
        cost=_cost(paths),
        details={
            "command": fingerprint.command_of(work),
            "state": state.state,
            "spec": _spec(paths),
            "metrics": {name: value for name, value in values.items() if isinstance(value, int | float | str)},
            **({"interpreter": work["interpreter"]} if "interpreter" in work else {}),
        },
        spotmpi=__version__,
    )


def _cost(paths: RunPaths) -> float | None:
    """US dollars for the run's nodes by their price in the spec or of AWS; None where neither is known."""
    import spotmpi  # the package's own names: what asks AWS stands above this room

    try:
        return spotmpi.run_cost(paths.id, Target(None, paths.folder.parent)).dollars
    except SpotmpiError:
        return None


def _entries(run: str, work: Mapping[str, Any], store: Store) -> list[Reference]:
    """The data sets of a store that the run has read."""
    found = []
    for text in work.get("entries") or ():
        reference = read_reference(text)
        if reference is None or store.get(reference) is None:
            remedy = "name the store that has it (--store, SPOTMPI_STORE)"
            raise SpotmpiError(
                f"run {run} has read {reference or text}, which {store.storage.url} does not have: {remedy}"
            )
        found.append(reference)
    return found


def _inputs(paths: RunPaths, work: Mapping[str, Any]) -> Iterator[Input]:
    """The folder of a run's data, and the source of its stream; each may be an entry."""
    data = work.get("data")
    if data:  # a cluster's is known by its path alone
        parent = reference_in(data["path"])
        digest = parent.key if parent else str(data.get("content") or data.get("state") or "")
        yield Input("data", data["path"], digest, parent=parent)
    source = reader.source(paths)
    if source:
        parent = reference_in(source.source)
        files = tuple(RawFile(*each) for each in source.files)
        yield Input("source", source.source, source.digest, () if parent else files, parent)


def _spec(paths: RunPaths) -> dict[str, Any]:
    """The spec of a run, without the values of variables: a store is shared, and they may be secrets."""
    spec = read_toml(paths.spec)
    return {**spec, "env": sorted(spec["env"])} if spec.get("env") else spec
