"""`spotmpi data`: data sets on the shared storage, and those in the store."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.entries import EntryCommands
from spotmpi.cli.options import Json, On, Set, command_group
from spotmpi.core.wording import counted, format_size

if TYPE_CHECKING:
    from spotmpi.data.datasets import Storage
    from spotmpi.data.store import Transfer

app = command_group()
VOC = "voc"  # the data set of that name; a folder of this machine is ./voc


@dataclass(frozen=True)
class StorageOptions:
    """Options that name shared storage, and the pod that reaches it."""

    on: On = None
    volume: Annotated[
        str | None,
        typer.Option("--volume", help="PersistentVolumeClaim (default: the environment's).", metavar="CLAIM"),
    ] = None
    image: Annotated[
        str | None,
        typer.Option("--image", help="Image with python3 for the pod that reads it (default: the environment's)."),
    ] = None
    pull_secret: Annotated[
        list[str] | None,
        typer.Option("--pull-secret", help="Secret for pulling the image. Repeatable.", metavar="SECRET"),
    ] = None
    toleration: Annotated[
        list[str] | None,
        typer.Option(
            "--toleration",
            help="A taint of nodes that the pod tolerates, as kubectl writes it. Repeatable.",
            metavar="KEY[=VALUE][:EFFECT]",
        ),
    ] = None

    @property
    def storage(self) -> Storage:
        """The storage that they name."""
        from spotmpi.data.datasets import Storage

        return Storage(self.on, self.volume, self.image, tuple(self.pull_secret or ()), tuple(self.toleration or ()))


@app.command("push")
def push(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Folders, tar files, https://...#sha256=..., s3://...; then the folder on the storage. "
            "Or: voc, the three original tar files of PASCAL VOC, and a folder (default: voc).",
            metavar="SRC",
        ),
    ],
    ca: Annotated[
        Path | None,
        typer.Option("--ca", help="File of additional certificates to trust (PEM).", metavar="FILE"),
    ] = None,
    where: StorageOptions = StorageOptions(),
    as_json: Json = False,
) -> None:
    """Copy data to a folder of the storage, with tar files unpacked.

    The same command continues after an interruption.
    """
    from spotmpi.core.errors import input_error
    from spotmpi.core.wording import echo
    from spotmpi.data import datasets

    if len(sources) < 2:
        raise input_error("DEST", None, "name what to push, then the folder on the storage: spotmpi data push SRC DEST")
    if sources[0] == VOC:
        files, folder = (sources[1:], VOC) if len(sources) == 4 else (sources[1:-1], sources[-1])
        transfers = datasets.push_voc(files, folder, where.storage, echo, ca)
    else:
        files, folder = sources[:-1], sources[-1]
        transfers = datasets.push(files, folder, where.storage, echo, ca)
    if as_json:
        print(json.dumps([asdict(each) for each in transfers]))
        return
    for source, each in zip(files, transfers, strict=True):
        print(f"{source.partition('#')[0]} -> {folder}: {_counts(each)}")
    echo(f"a spec reads it with: data = {json.dumps(folder)}")


@app.command("ls")
def ls(
    folder: Annotated[str, typer.Argument(help="A folder of the storage (default: its top).", metavar="FOLDER")] = "",
    where: StorageOptions = StorageOptions(),
    as_json: Json = False,
) -> None:
    """List a folder of the storage, with sizes."""
    from spotmpi.cli.tables import show_table
    from spotmpi.core.wording import echo
    from spotmpi.data import datasets

    entries = datasets.ls(folder, where.storage, echo)
    if as_json:
        print(json.dumps(entries))
        return
    if not entries:
        echo(f"nothing in {folder or 'the storage'}: `spotmpi data push SRC DEST` copies data to it")
        return
    rows = [
        (f"{each['bytes'] / 1e6:,.1f}", "" if each["files"] is None else str(each["files"]), each["name"])
        for each in entries
    ]
    show_table(("MB", "FILES", "NAME"), rows)


@app.command("pull")
def pull(
    folder: Annotated[str, typer.Argument(help="A folder of the storage.", metavar="FOLDER")],
    into: Annotated[
        Path,
        typer.Argument(help="Where to put it (default: a folder of its name).", metavar="INTO", show_default=False),
    ] = Path(),
    where: StorageOptions = StorageOptions(),
    as_json: Json = False,
) -> None:
    """Copy a folder of the storage here.

    After an interruption the same command continues.
    """
    from spotmpi.core import names
    from spotmpi.core.wording import echo
    from spotmpi.data import datasets

    path = into if into != Path() else Path(Path(folder).name)
    transfer = datasets.pull(folder, path, where.storage, echo)
    text = f"{folder} -> {names.display_path(path.absolute())}: {_counts(transfer)}"
    print(json.dumps(asdict(transfer)) if as_json else text)


@app.command("clean")
def clean(
    older: Annotated[
        str, typer.Option("--older", help="What no run has named for longer than this, such as 30d.", metavar="AGE")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; without it they are only listed.")] = False,
    where: StorageOptions = StorageOptions(),
    as_json: Json = False,
) -> None:
    """List versions on the storage that no run names, and delete them.

    These are copies of data sets and models for runs of the cluster. Nothing is deleted without --yes.
    """
    from spotmpi.cli.tables import show_table
    from spotmpi.core.wording import echo
    from spotmpi.data import datasets
    from spotmpi.spec.job import read_duration

    found = datasets.clean(read_duration("--older", older), yes, where.storage, echo)
    if as_json:
        print(json.dumps(found))
        return
    rows = [(f"{each['bytes'] / 1e6:,.1f}", f"{each['kind']}:{each['name']}@{each['key'][:12]}") for each in found]
    show_table(("MB", "VERSION"), rows)
    echo(f"versions deleted: {len(found)}" if yes else f"versions: {len(found)}; --yes deletes them")


@app.command("build")
def build(
    spec: Annotated[Path, typer.Argument(help="A spec with the table [dataset].", metavar="SPEC")],
    settings: Set = None,
    on: On = None,
    as_json: Json = False,
) -> None:
    """Build the data set of a spec, unless the store has it."""
    from spotmpi.api.dataset_specs import build
    from spotmpi.cli.entries import summary

    found = build(spec, settings or (), on)
    print(json.dumps(summary(found.manifest, found.store)) if as_json else f"{found}: {found.path}")


EntryCommands("datasets", "data set", "`spotmpi data build SPEC`").add_to(app)


def _counts(transfer: Transfer) -> str:
    return f"{counted(transfer.files, 'file')}, {format_size(transfer.bytes)}, {transfer.transferred} of them new"
