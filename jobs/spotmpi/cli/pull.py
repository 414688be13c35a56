"""`spotmpi pull`: copy a run's folder from the cluster."""

import json

from spotmpi.cli.options import Json, RunId, TargetOptions


def command(run: RunId, where: TargetOptions = TargetOptions(), as_json: Json = False) -> None:
    """Copy a run's model, checkpoints and records to this machine.

    They come from the run volume of its cluster, or by ssh from its login node of Slurm.
    """
    from spotmpi.api import runs as api
    from spotmpi.core import names
    from spotmpi.core.wording import echo, format_size

    folder = api.pull(run, where.target, echo)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if as_json:
        print(json.dumps({"run": folder.name, "folder": str(folder), "bytes": size}))
    else:
        print(f"{names.display_path(folder)} ({format_size(size)})")
