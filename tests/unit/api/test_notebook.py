"""Each command as a function, tried from the cells of a notebook in a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.notebooks import open_notebook

CELLS = {
    "init": """
from pathlib import Path
import spotmpi
from spotmpi.spec.template import write
write(Path("job.toml"))
assert spotmpi.read_spec("job.toml").program == "digits"
""",
    "plan": """
code = "[print(f'step {i} loss {1 / i:.3f}', flush=True) for i in range(1, 41)]"
job = {
    "name": "cell", "command": ["python3", "-c", code], "launcher": "none",
    "metrics": {"pattern": r"step (?P<iteration>\\d+) loss (?P<loss>\\S+)", "samples_per_iteration": 4},
    "limits": {"failures": 0},
}
assert (spotmpi.plan_run(job)["name"], spotmpi.list_runs()) == ("cell", [])
""",
    "run": """
seen = []
state = spotmpi.run(job, on_event=seen.append, echo=print)
assert (state.state, state.iteration) == ("succeeded", 40)
kinds = [event.kind for event in seen if event.kind not in ("metric", "recognized")]
assert kinds[:3] == ["submitted", "started", "line"]
""",
    "status, logs and list": """
assert (spotmpi.status(state.id).state, spotmpi.status(state.id[:12]).iteration) == ("succeeded", 40)
lines = [event.values["text"] for event in spotmpi.logs(state.id) if event.kind == "line"]
assert lines[-2:] == ["step 39 loss 0.026", "step 40 loss 0.025"]
assert [each.state for each in spotmpi.list_runs()] == ["succeeded"]
""",
    "detach, stop and resume": """
going = spotmpi.run(job, ["command=['sleep', '60']"], detach=True)
assert (going.over, spotmpi.stop(going.id).state) == (False, "stopped")
assert spotmpi.plan_resume(going.id)["run"] == going.id
again = spotmpi.resume(going.id, ["command=['true']"], on_event=seen.append, echo=seen.append)
assert (again.state, again.attempt) == ("succeeded", 2)
""",
    "output and messages": """
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as messages:
    echo = spotmpi.run(["echo", "hello"])
assert output.getvalue() == "hello\\n"
assert messages.getvalue() == f"spotmpi: attempt 1 started\\nspotmpi: {echo.id} succeeded\\n"
""",
    "wrong input": """
try:
    spotmpi.run({"launcher": "none", "nodes": 0, "x": 1})
except spotmpi.InputError as error:
    fields = [problem.field for problem in error.problems]
assert fields == ["nodes", "x", "program"]
""",
    "bench and report": """
from spotmpi.study.study import StudyOptions
sweep = spotmpi.bench(job, StudyOptions(nodes=(1,), repeats=2), echo=lambda text: None)
assert (type(sweep).__name__, len(sweep.trials), sweep.finished) == ("Sweep", 2, True)
assert type(spotmpi.make_report()).__name__ == "Report"
""",
    "clean": """
assert spotmpi.clean(3600) == spotmpi.clean("1h") == [] and len(spotmpi.clean(0)) >= 4
spotmpi.clean(0, delete=True)
assert spotmpi.list_runs() == []
""",
}


def test_each_command_is_a_function_that_works_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTMPI_RUNS", raising=False)
    open_notebook(CELLS.values(), tmp_path, monkeypatch).execute()
