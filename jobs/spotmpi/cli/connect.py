"""`spotmpi connect`: the address of a pool for any Dask client."""

from __future__ import annotations

import typer

from spotmpi.cli.options import Json, On, RunId, RunsFolder, target


def command(run: RunId, on: On = None, runs: RunsFolder = None, as_json: Json = False) -> None:
    """Print how any Dask client reaches a pool, and keep the way open until Ctrl-C.

    It prints the address of the scheduler and the three files that a client needs: the run's certificate, its key, and
    the authority that issued it.
    """
    import json
    import time

    from spotmpi.agent import protocol
    from spotmpi.backends import targets

    backend = targets.backend_of(run, target(on, runs))
    run = backend.state(run).id
    with backend.pool_address(run) as address:
        names = {"ca": protocol.POOL_CA, "cert": protocol.POOL_CERTIFICATE, "key": protocol.POOL_KEY}
        files = {role: str(address.tls / name) for role, name in names.items()}
        if as_json:
            print(json.dumps({"address": address.url, **files}), flush=True)
        else:
            print(_EXAMPLE.format(address=address.url, **files), flush=True)
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
