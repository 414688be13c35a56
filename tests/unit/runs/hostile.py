"""Hostile text that programs and other users can write, for tests of every reader."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

TEXTS = {
    "escape codes": "\x1b[2J\x1b[31mred",
    "a title by OSC": "\x1b]0;owned\x07",
    "a link by OSC": "\x1b]8;;http://a.invalid\x1b\\click\x1b]8;;\x1b\\",
    "C1 control": "\x9b31mred",
    "NUL and backspaces": "a\x00b\b\b",
    "right to left": "safe\u202egnp.exe\u2066",
    "line ends": "one\ntwo\r\nthree\u2028four\x0bfive",
    "rich markup": "[bold]x[/val] [link=http://a.invalid]y[/link] :warning:",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>&lt;",
    "Markdown": "# title\n\n[click](http://a.invalid) ![x](http://a.invalid) | `a` | ~~b~~ &copy; **c**",
    "a formula": "$\\frac{$",
    "half a surrogate pair": "\ud800x\udfff",
    "200,000 letters": "x" * 200_000,
    "a quoted attribute": "\"' onload='x",
}


def report_line(kind: str, **values: Any) -> bytes:
    """A line of a program, by its own encoder."""
    return json.dumps({"spotmpi": kind, **values}).encode()


def metric(values: str) -> bytes:
    """A metric line of iteration 70 with *values*, which are JSON."""
    return b'{"spotmpi": "metric", "iteration": 70, ' + values.encode() + b"}"


def _packed(ranks: int, value: float) -> str:
    return base64.b64encode(struct.pack(f"<{ranks}f", *[value] * ranks)).decode()


_DEEP = 100_000
LINES: dict[str, bytes] = {
    "nested without end": metric('"x": ' + "[" * _DEEP),
    "nested deeply": metric('"x": ' + "[" * _DEEP + "]" * _DEEP),
    "nested as deeply as json can": metric('"x": ' + '{"a":' * 400 + "1" + "}" * 400),
    "plain text nested deeply": b'{"spotmpi' + b'{"a":' * _DEEP,
    "a rank of 5,000 digits": b"[1," + b"9" * 5000 + b"]<stdout>: x",
    "a job of 5,000 digits": b"[" + b"9" * 5000 + b",1]<stdout>: x",
    "a rank in launcher's words": b"rank " + b"9" * 5000 + b" with PID 1 on node a exited on signal 9",
    "a loss of 10**400": metric('"loss": 1' + "0" * 400),
    "a loss of 5,000 digits": metric('"loss": ' + "9" * 5000),
    "a loss of -10**400": metric('"loss": -1' + "0" * 400),
    "a loss of 1e400": metric('"loss": 1e400'),
    "a loss of 1e308": metric('"loss": 1e308'),
    "a loss of -1e308": metric('"loss": -1e308'),
    "a loss of NaN": metric('"loss": NaN, "x": Infinity, "y": -Infinity'),
    "an iteration of 5,000 digits": b'{"spotmpi": "metric", "iteration": ' + b"9" * 5000 + b"}",
    "an iteration of 10**25": b'{"spotmpi": "metric", "iteration": 1' + b"0" * 25 + b"}",
    "an iteration that leaps": b'{"spotmpi": "metric", "iteration": 1000000000000000, "loss": 1.0}',
    "a negative iteration": b'{"spotmpi": "metric", "iteration": -5, "loss": 1.0}',
    "two values of one name": metric('"loss": 1, "loss": "x", "iteration": 71'),
    "a kind that is a list": b'{"spotmpi": ["metric"], "iteration": 70}',
    "a kind that is an object": b'{"spotmpi": {"metric": 1}, "iteration": 70}',
    "endless seconds": metric('"seconds": [1e308, 1e308]'),
    "no seconds": metric('"seconds": [5e-324, 5e-324]'),
    "seconds of 10**400": metric('"seconds": [1' + "0" * 400 + "]"),
    "seconds that are lists": metric('"seconds": [[1]]'),
    "waited for ages": metric('"seconds": [0.1], "waited": 1e308'),
    "waited backwards": metric('"seconds": [0.1], "waited": -5'),
    "waited in words": metric('"seconds": [0.1], "waited": "x"'),
    "ranks that are not numbers": metric(f'"seconds": [0.1], "ranks": "{_packed(2, float("nan"))}"'),
    "another number of ranks": metric(f'"seconds": [0.1], "ranks": "{_packed(3, 0.1)}"'),
    "ranks that are not base64": metric('"seconds": [0.1], "ranks": "\u00e4"'),
    "5,000 scalars": metric(", ".join(f'"name-{number}": {number}' for number in range(5000))),
    "a name without end": metric('"' + "n" * 500_000 + '": 1'),
    "a total that is never reached": report_line("context", total_iterations=10**18),
    "a total of 10**400": report_line("context", total_iterations=10**400),
    "a context of other types": report_line(
        "context", data_fingerprint=5, seed=["x"], samples={"a": 1}, scaling=["strong"], allreduce="no", hosts=None
    ),
    "a version that is an object": report_line("context", versions={"mpi": {"a": ["b"]}, "b": None}),
    "a checkpoint for an object": report_line("checkpoint", iteration=70, reason={"a": 1}, seconds=1.0),
    "resumed from nowhere": report_line("resumed", path=5),
    "an accuracy of 10**400": report_line("result", iteration=60, accuracy=10**400),
    "an accuracy in words": report_line("result", iteration=60, accuracy="high", loss=[1]),
    "a final loss of 1e308": report_line("result", iteration=60, loss=1e308),
    "a million letters": b"x" * 1_000_000,
    "bytes that are not UTF-8": b'{"spotmpi": "metric", "iteration": 70, "\xff\xfe": 1}',
    **{f"a name of {name}": report_line("metric", iteration=70, **{text: 1.5}) for name, text in TEXTS.items()},
    **{f"a reason of {name}": report_line("checkpoint", iteration=70, reason=text) for name, text in TEXTS.items()},
    **{
        f"a host of {name}": report_line(
            "context", hosts=[text], versions={text: text}, data_fingerprint=text, samples=text
        )
        for name, text in TEXTS.items()
    },
    **{f"output of {name}": text.encode("utf-8", "surrogatepass") for name, text in TEXTS.items()},
}
