from pathlib import Path

import pytest

import spotmpi
from spotmpi.backends.targets import Target
from spotmpi.spec.job import JobSpec, Limits


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed")])
def test_a_program_that_closes_its_output_before_it_ends_is_judged_by_its_exit_code(
    tmp_path: Path, code: int, state: str
) -> None:
    """A program that has closed its pipes still runs: it is not killed, and its exit code counts."""
    late = tmp_path / "late"
    command = ["sh", "-c", f'echo on; exec >&- 2>&-; sleep 0.3; echo x > "{late}"; exit {code}']
    spec = JobSpec(command=command, launcher="none", limits=Limits(failures=0))
    assert spotmpi.run(spec, on=Target(runs_folder=tmp_path / "runs")).state == state
    assert late.exists()
