"""`spotmpi data`: data sets on the shared storage."""

from pathlib import Path
from typing import Annotated

import typer

from spotmpi.cli.options import Json, On

app = typer.Typer(help="Push, list and pull data on the shared storage.", no_args_is_help=True, rich_markup_mode=None)

Claim = Annotated[str | None, typer.Option("--volume", help="The claim (default: the environment's).", metavar="CLAIM")]
Image = Annotated[
    str | None, typer.Option("--image", help="What to read it with; has python3 (default: the environment's).")
]


@app.command("push")
def push(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Folders, tar files, https://...#sha256=..., s3://...; then the folder on the storage. "
            "Or: voc, the three original tar files of PASCAL VOC, and a folder (default: voc).",
        ),
    ],
    ca: Annotated[
        Path | None, typer.Option("--ca", help="Certificates (PEM) to trust besides the usual ones.", metavar="FILE")
    ] = None,
    on: On = None,
    volume: Claim = None,
    image: Image = None,
    json: Json = False,
) -> None:
    """Bring data to a folder of the storage, tar files unpacked; the same command goes on where one broke off."""
    from spotmpi.cli import data_table

    data_table.push(sources, ca, data_table.storage(on, volume, image), json)


@app.command("ls")
def ls(
    folder: Annotated[str, typer.Argument(help="A folder of the storage (default: its top).")] = "",
    on: On = None,
    volume: Claim = None,
    image: Image = None,
    json: Json = False,
) -> None:
    """List a folder of the storage, with sizes."""
    from spotmpi.cli import data_table

    data_table.ls(folder, data_table.storage(on, volume, image), json)


@app.command("pull")
def pull(
    folder: Annotated[str, typer.Argument(help="A folder of the storage.")],
    into: Annotated[Path, typer.Argument(help="Where to put it (default: a folder of its name).")] = Path(),
    on: On = None,
    volume: Claim = None,
    image: Image = None,
    json: Json = False,
) -> None:
    """Bring a folder of the storage here; the same command goes on where one broke off."""
    from spotmpi.cli import data_table

    data_table.pull(folder, into, data_table.storage(on, volume, image), json)
