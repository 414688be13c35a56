"""`spotmpi tensorboard`: a run's curves in TensorBoard, also while it goes on elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import On, RunId, RunsFolder, target

if TYPE_CHECKING:
    from subprocess import Popen

    from spotmpi.backends.targets import Target

REFRESH = 10.0  # seconds between looks at a run that goes on
_PART = "tensorboard"


def command(
    run: RunId,
    port: Annotated[int, typer.Option("--port", help="Port of this machine on which TensorBoard listens.")] = 6006,
    on: On = None,
    runs: RunsFolder = None,
) -> None:
    """Start TensorBoard on a run's events, which are brought here from the cluster as they come; Ctrl-C ends it."""
    import shutil
    import subprocess

    from spotmpi.api import runs as api
    from spotmpi.cli.view import say
    from spotmpi.core.errors import SpotmpiError

    program = shutil.which("tensorboard")
    if program is None:
        raise SpotmpiError("there is no tensorboard on PATH; install it, such as by `uv tool install tensorboard`")
    place = target(on, runs)
    events = api.pull(run, place, say, _PART) / _PART
    events.mkdir(exist_ok=True)
    say(f"TensorBoard: http://localhost:{port} (Ctrl-C ends it)")
    process = subprocess.Popen([program, "--logdir", str(events), "--port", str(port)])
    try:
        _refreshed(run, place, process)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        return
    raise typer.Exit(process.wait())


def _refreshed(run: str, place: Target, process: Popen[bytes]) -> None:
    """Bring what is new, as long as TensorBoard runs; its last once the run is over."""
    import contextlib
    import subprocess

    from spotmpi.api import runs as api
    from spotmpi.cli.view import say
    from spotmpi.core.errors import SpotmpiError

    over = False
    while True:
        try:
            process.wait(None if over else REFRESH)
            return
        except subprocess.TimeoutExpired:
            with contextlib.suppress(SpotmpiError):  # the next look may reach it again
                over = api.status(run, place).over
                api.pull(run, place, say, _PART)
