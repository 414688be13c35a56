"""A remembered Pulumi asks again whatever changed a state."""

from __future__ import annotations

from pathlib import Path

from tests.engine.remembered_pulumi import RememberedPulumi


def test_a_stack_is_created_each_time_that_it_does_not_exist_and_selected_once_where_it_does(tmp_path: Path) -> None:
    states, program, output = tmp_path / "stacks", tmp_path / "bin" / "pulumi", list[str]()
    state = states / "spotmpi" / "lab-data.json"
    for folder in (state.parent, program.parent):
        folder.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$1 $2"\n[ -e {state} ] || echo "{{}}" > {state}\n')
    program.chmod(0o755)
    variables = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    pulumi = RememberedPulumi(output.append, tmp_path, variables, states)
    for asked in (1, 2, 2):
        pulumi.run("lab-data", "stack", "select", "--create")
        assert len(output) == asked and state.exists()
    state.unlink()  # as a test goes back to what was built
    pulumi.run("lab-data", "stack", "select", "--create")
    assert state.exists()
