"""`spotmpi tensorboard`: a run's curves in TensorBoard, also while it runs on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import RunId, TargetOptions

if TYPE_CHECKING:
    from subprocess import Popen

    from spotmpi.backends.targets import Target

REFRESH = 10.0  # seconds between copies of the events of a run that has not ended
_PART = "tensorboard"


def command(
    run: RunId,
    port: Annotated[int, typer.Option("--port", help="Port of this machine on which TensorBoard listens.")] = 6006,
    where: TargetOptions = TargetOptions(),
) -> None:
    """Show a run's curves in TensorBoard, also while it runs.

    Its event files are copied from the cluster every ten seconds; Ctrl-C ends it.
    """
    import shutil
    import subprocess

    from spotmpi.api import runs as api
    from spotmpi.core.errors import SpotmpiError, input_error
    from spotmpi.core.wording import echo

    if not 0 < port < 65536:
        raise input_error("--port", port, "give 1 to 65535")
    program = shutil.which("tensorboard")
    if program is None:
        raise SpotmpiError("command not found: tensorboard; install it, for example with `uv tool install tensorboard`")
    chosen = where.target
    events = api.pull(run, chosen, echo, _PART) / _PART
    events.mkdir(exist_ok=True)
    echo(f"TensorBoard: http://localhost:{port} (Ctrl-C ends it)")
    process = subprocess.Popen([program, "--logdir", str(events), "--port", str(port)])
    try:
        _refresh(run, chosen, process)
    except KeyboardInterrupt:
        return
    finally:  # also where the copy of the events fails, as on a full disk
        if process.poll() is None:
            process.terminate()
            process.wait()
    raise typer.Exit(process.returncode)


def _refresh(run: str, chosen: Target, process: Popen[bytes]) -> None:
    """Copy new events while TensorBoard runs, for the last time once the run has ended."""
    import contextlib
    import subprocess

    from spotmpi.api import runs as api
    from spotmpi.core.errors import SpotmpiError
    from spotmpi.core.wording import echo

    over = False
    while True:
        try:
            process.wait(None if over else REFRESH)
            return
        except subprocess.TimeoutExpired:
            with contextlib.suppress(SpotmpiError):  # the next try may reach the cluster again
                over = api.status(run, chosen).over
                api.pull(run, chosen, echo, _PART)
