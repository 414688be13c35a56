"""What goes on and ends by itself after `spotmpi` was killed by SIGKILL, as a process of its own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spotmpi.aws.scaling import CLUSTER_TAG, GROUP_TAG
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.remote import serve
from tests.unit.core.test_environment import OUTPUTS

REPOSITORY = Path(__file__).resolve().parents[3]
SCALE = """
import sys
from spotmpi.cli.main import main
from spotmpi.environments import warm_nodes as warm
from tests.cloud.account.remote import RemoteAccount
address = sys.argv.pop()
warm.open_account = lambda region: RemoteAccount(address)
main()
"""


@pytest.mark.parametrize("is_resized", [False, True], ids=["before", "after"])
def test_aws_has_the_end_of_warm_nodes_when_the_command_is_killed_before_or_after_the_resize(
    account: FakeAccount, tmp_path: Path, is_resized: bool
) -> None:
    (tmp_path / "lab.json").write_text(json.dumps(OUTPUTS))
    terminals = queue.Queue[subprocess.Popen[bytes]]()
    account.autoscaling.add("eks-lab-1", {CLUSTER_TAG: "spotmpi-lab", GROUP_TAG: "g4dn"}, most=3)

    def killed(region: str, request: Mapping[str, Any]) -> Any:
        if is_resized:
            account.autoscaling.update_auto_scaling_group(region, request)
        os.kill(terminals.get().pid, signal.SIGKILL)
        return {}

    before = datetime.now(UTC)
    account.answers["UpdateAutoScalingGroup"] = killed
    with serve({"aws": account.answer}) as address:
        words = ["scale", "g4dn", "2", "--for", "30m", "--on", str(tmp_path / "lab.json"), address]
        terminal = subprocess.Popen(
            [sys.executable, "-c", SCALE, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
        )
        terminals.put(terminal)
        assert terminal.wait(60) == -signal.SIGKILL

    assert account.autoscaling.groups["eks-lab-1"]["MinSize"] == (2 if is_resized else 0)
    end = account.autoscaling.scheduled_actions["eks-lab-1"]
    assert (end["ScheduledActionName"], end["MinSize"]) == ("spotmpi-give-back-eks-lab-1", 0)
    reservation = timedelta(minutes=30)
    assert before + reservation <= datetime.fromisoformat(end["StartTime"]) <= datetime.now(UTC) + reservation
