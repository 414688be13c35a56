"""The same prediction over raw ZeroMQ: push and pull without encryption, and nothing for lost workers.

python -m scripts.streams.zeromq REQUESTS RESULTS    is one worker
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from scripts.streams import by_hand, work

WINDOW = 32  # batches under way


def serve(requests: str, results: str) -> None:
    """Prepare batches until this process is ended."""
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.set_hwm(1)
    pull.connect(requests)
    push.connect(results)
    while True:
        number, batch, name = pickle.loads(pull.recv())
        table = np.ascontiguousarray(by_hand.read_and_prepare(getattr(work, name), batch, number))
        push.send(pickle.dumps((number, table.dtype.str, table.shape)), zmq.SNDMORE)
        push.send(table.data, copy=False)


def predict(push: Any, pull: Any, prepare: str, source: str, folder: Path) -> None:
    """Write the results of all batches."""
    folder.mkdir(parents=True, exist_ok=True)
    todo = list(enumerate(by_hand.batches_of(source)))
    buffer: dict[int, Any] = {}
    requests = 0
    for number in range(len(todo)):
        while requests < min(len(todo), number + WINDOW):
            push.send(pickle.dumps((*todo[requests], prepare)))
            requests += 1
        while number not in buffer:
            key, dtype, shape = pickle.loads(pull.recv())
            buffer[key] = np.frombuffer(pull.recv(copy=False), dtype).reshape(shape)
        by_hand.write(folder, number, work.score(buffer.pop(number)))


if __name__ == "__main__":
    serve(*sys.argv[1:])
