"""`spotmpi connect`: the address of a pool or stream for any Dask client, or of its dashboard."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Json, RunId, TargetOptions

if TYPE_CHECKING:
    from spotmpi.backends.base import Backend


def command(
    run: RunId,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print the address of Dask's dashboard instead.")
    ] = False,
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Print how Dask clients connect to a pool or stream, and keep the connection open until Ctrl-C.

    It prints the address of the scheduler and the three files that a client needs: the run's certificate, its key, and
    the authority that issued it. With --dashboard it prints the address of Dask's dashboard on this machine, for which
    the run's image needs the package bokeh.
    """
    from spotmpi.agent import protocol
    from spotmpi.api import pools
    from spotmpi.backends import targets

    chosen = where.target
    backend = targets.backend_of(run, chosen)
    run = backend.state(run).id
    if dashboard:
        with pools.dashboard(run, chosen) as page:
            print(json.dumps({"dashboard": page}) if as_json else page, flush=True)
            _wait_for_end(backend, run)
        return
    with pools.address_of(backend, run) as address:
        names = {"ca": protocol.TLS_CA, "cert": protocol.TLS_CERTIFICATE, "key": protocol.TLS_KEY}
        files = {role: str(address.tls / name) for role, name in names.items()}
        if as_json:
            print(json.dumps({"address": address.url, **files}), flush=True)
        else:
            print(_EXAMPLE.format(address=address.url, **files), flush=True)
        _wait_for_end(backend, run)


def _wait_for_end(backend: Backend, run: str) -> None:
    """Keep the way open until the run ends, or Ctrl-C."""
    import time

    try:
        while not backend.state(run).over:
            time.sleep(1.0)
    except KeyboardInterrupt:
        raise typer.Exit from None


_EXAMPLE = """\
from distributed import Client, Security
security = Security(
    require_encryption=True,
    tls_ca_file={ca!r},
    tls_client_cert={cert!r},
    tls_client_key={key!r},
)
client = Client({address!r}, security=security)"""
