"""What enforces the cost limit of a run without a terminal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from spotmpi.agent import hardware
from spotmpi.agent.plan import NODE, Member
from spotmpi.runs import reader
from tests.command_line import SPOTMPI
from tests.contract.fake_program import fake_job
from tests.contract.processes import wait_until
from tests.unit.agent.gang import kinds


def test_a_run_with_a_killed_terminal_still_ends_at_its_limit(tmp_path: Path) -> None:
    money: dict[str, Any] = {"price": 3600.0, "limits": {"cost": 5.0}, "checkpoint": {"grace": "1s"}}
    (tmp_path / "job.toml").write_text(tomli_w.dumps(fake_job(iterations=100_000, every=100_000, **money)))
    command = [SPOTMPI, "run", "job.toml"]
    terminal = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (paths,) = wait_until(lambda: reader.every(tmp_path / "runs"))
    wait_until(lambda: reader.state(paths).iteration)
    terminal.kill()
    terminal.communicate()

    wait_until(lambda: reader.summary(paths))

    summary: Any = reader.summary(paths)
    assert summary and summary["state"] == "failed" and "limits.cost ($5)" in summary["reason"]
    (attempt,) = summary["attempts"]
    assert 4.0 <= attempt["ended"] - attempt["allocated"] < 30  # of five seconds, one is kept for the checkpoint
    # Only a notice writes one so early; until the agent has read of it, the program goes on.
    assert 1 < attempt["checkpoint_iteration"] <= attempt["last_iteration"]


def test_agents_enforce_the_limit_and_record_their_machines(gang: Any) -> None:
    started = gang("sh", "-c", "sleep 60", started=0, limits={"cost": 2.5}, checkpoint={"grace": "1s"})
    started.plan["rate"] = 1800.0  # half a dollar a second
    for node in range(2):
        started.start(node)

    assert started.codes() == [78, 0]
    assert kinds(started.events())[-1] == "failed" and "limits.cost" in (started.events()[-1].reason or "")
    (start,) = [event for event in started.events() if event.kind == "started"]
    assert [each["member"] for each in start.values["machines"]] == ["node/0", "node/1"]
    assert all(0 <= start.time - each["since"] < 30 for each in start.values["machines"])


def test_an_ec2_machine_reports_its_type_and_instance_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hardware.ENV_NODE_NAME, "ip-10-0-0-7.ec2.internal")
    unknown = {"member": "node/3", "since": 5.0, "name": "ip-10-0-0-7.ec2.internal", "type": None, "instance": None}
    assert hardware.identify(Member(NODE, 3), 5.0, str(tmp_path)) == unknown
    folder = tmp_path / "sys/devices/virtual/dmi/id"
    folder.mkdir(parents=True)
    (folder / "product_name").write_text("HVM domU\n")
    (folder / "board_asset_tag").write_text("Not Specified\n")
    assert hardware.identify(Member(NODE, 3), 5.0, str(tmp_path)) == unknown
    (folder / "product_name").write_text("g5.xlarge\n")
    (folder / "board_asset_tag").write_text("i-0123456789abcdef0\n")

    description = json.loads(json.dumps(hardware.identify(Member(NODE, 3), 5.0, str(tmp_path))))
    assert (description["type"], description["instance"]) == ("g5.xlarge", "i-0123456789abcdef0")
