"""moto's S3 server for a program that runs by itself and prints what it saw there (`environments.answer_of`)."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

from moto.server import ThreadedMotoServer

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


def started() -> ThreadedMotoServer:
    """A server that this process's environment leads to, with the keys."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {**KEYS, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    os.environ["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    return server


def end_with(seen: dict[str, Any]) -> NoReturn:
    """End the program with *seen* as its answer, without a wait for the server's threads or its clients."""
    print(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)
