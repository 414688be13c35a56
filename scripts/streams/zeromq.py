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
    early: dict[int, Any] = {}
    sent = 0
    for number in range(len(todo)):
        while sent < min(len(todo), number + WINDOW):
            push.send(pickle.dumps((*todo[sent], prepare)))
            sent += 1
        while number not in early:
            arrived, dtype, shape = pickle.loads(pull.recv())
            early[arrived] = np.frombuffer(pull.recv(copy=False), dtype).reshape(shape)
        by_hand.write(folder, number, work.score(early.pop(number)))


if __name__ == "__main__":
    serve(*sys.argv[1:])
