"""Each command as a function, tried from the cells of a notebook in a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.notebooks import open_notebook, outputs_of

CELLS = {
    "init": """
from pathlib import Path
import spotmpi
from spotmpi.spec.template import write
write(Path("job.toml"))
print(spotmpi.read_spec("job.toml").program)
""",
    "plan": """
job = {
    "name": "cell", "command": ["python3", "-c", CODE], "launcher": "none",
    "metrics": {"pattern": r"step (?P<iteration>\\d+) loss (?P<loss>\\S+)", "samples_per_iteration": 4},
    "limits": {"failures": 0},
}
print(spotmpi.plan_run(job)["name"], len(spotmpi.list_runs()))
""",
    "run": """
seen = []
state = spotmpi.run(job, watch=seen.append, say=print)
print(state.state, state.iteration, [event.kind for event in seen if event.kind != "metric"][:3])
""",
    "status": "print(spotmpi.status(state.id).state, spotmpi.status(state.id[:12]).iteration)",
    "logs": "print(*[event.values['text'] for event in spotmpi.logs(state.id) if event.kind == 'line'][-2:], sep='; ')",
    "list": "print([each.state for each in spotmpi.list_runs()])",
    "detach and stop": """
going = spotmpi.run(job, ["command=['sleep', '60']"], detach=True)
print(going.over, spotmpi.stop(going.id).state)
""",
    "resume": """
print(spotmpi.plan_resume(going.id)["run"] == going.id)
again = spotmpi.resume(going.id, ["command=['true']"], watch=seen.append, say=seen.append)
print(again.state, again.attempt)
""",
    "output and messages": """
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as messages:
    echo = spotmpi.run(["echo", "hello"])
lines = output.getvalue().splitlines() + messages.getvalue().replace(echo.id, "echo").splitlines()
print(*lines, sep="; ")
""",
    "wrong input": """
try:
    spotmpi.run({"nodes": 0, "x": 1})
except spotmpi.InputError as error:
    print([problem.field for problem in error.problems])
""",
    "bench": """
from spotmpi.study.study import StudyOptions
sweep = spotmpi.bench(job, StudyOptions(nodes=(1,), repeats=2), say=lambda text: None)
print(type(sweep).__name__, len(sweep.trials), sweep.finished)
""",
    "report": "print(type(spotmpi.make_report()).__name__)",
    "clean": """
print(len(spotmpi.clean(3600)), len(spotmpi.clean(0)) >= 4)
spotmpi.clean(0, delete=True)
print(len(spotmpi.list_runs()))
""",
}
EXPECTED_SIGNATURES = {
    "init": "digits",
    "plan": "cell 0",
    "run": "succeeded 40 ['submitted', 'started', 'line']",
    "status": "succeeded 40",
    "logs": "step 39 loss 0.026; step 40 loss 0.025",
    "list": "['succeeded']",
    "detach and stop": "False stopped",
    "resume": "True\nsucceeded 2",
    "output and messages": "hello; spotmpi: attempt 1 started; spotmpi: echo succeeded",
    "wrong input": "['nodes', 'x', 'program']",
    "bench": "Sweep 2 True",
    "report": "Report",
    "clean": "0 True\n0",
}
CODE = "[print(f'step {i} loss {1 / i:.3f}', flush=True) for i in range(1, 41)]"


def test_each_command_is_a_function_that_works_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTMPI_RUNS", raising=False)
    client = open_notebook((f"CODE = {CODE!r}\n{text}" for text in CELLS.values()), tmp_path, monkeypatch)

    client.execute()

    signatures = {name: text.strip() for name, text in outputs_of(client, CELLS).items()}
    assert signatures == EXPECTED_SIGNATURES
