"""A loader process: batches on stdout for requests on stdin, as pickles, until stdin ends with its rank."""

import contextlib
import os
import pickle
import sys
import traceback
from typing import IO, Any

from spotmpi.programs.loader import load


def main() -> None:
    """Serve one rank."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not land between the pickles
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve(sys.stdin.buffer, answers)
    os._exit(0)


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    dataset, seed = pickle.load(requests)
    while True:
        samples = pickle.load(requests)
        try:
            answer: tuple[str, Any] = ("batch", load(dataset, seed, samples))
        except Exception as problem:
            problem.add_note(f"in a loader process:\n{traceback.format_exc()}")
            answer = ("error", problem)
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    main()
