"""`spotmpi init`: a commented spec to start from."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    path: Annotated[Path, typer.Argument(help="Where to write the spec.")] = Path("job.toml"),
) -> None:
    """Write a commented job spec to start from."""
    from spotmpi.api import runs

    print(runs.init(path))
    typer.echo(f"next: spotmpi run {path}", err=True)
