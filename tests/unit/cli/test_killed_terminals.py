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
from tests.cloud.account_resources import AccountResources
from tests.cloud.http_account import answers_of, serve
from tests.unit.core.test_environment import OUTPUTS

REPOSITORY = Path(__file__).resolve().parents[3]
SCALE = """
import sys
from spotmpi.cli.main import main
from spotmpi.environments import warm_nodes as warm
from tests.cloud.http_account import account_at
address = sys.argv.pop()
warm.open_account = lambda region: account_at(address).aws
main()
"""


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_aws_has_the_end_of_warm_nodes_when_the_command_is_killed_around_asking_for_them(
    tmp_path: Path, done: bool
) -> None:
    (tmp_path / "lab.json").write_text(json.dumps(OUTPUTS))
    stock, terminals = AccountResources(), queue.Queue[subprocess.Popen[bytes]]()
    stock.group("eks-lab-1", {CLUSTER_TAG: "spotmpi-lab", GROUP_TAG: "g4dn"}, most=3)
    answers = stock.account().answers
    resize = answers["UpdateAutoScalingGroup"]

    def killed(region: str, request: Mapping[str, Any]) -> Any:
        if done:
            resize(region, request)
        os.kill(terminals.get().pid, signal.SIGKILL)
        return {}

    before = datetime.now(UTC)
    with serve(answers_of(answers | {"UpdateAutoScalingGroup": killed})) as address:
        words = ["scale", "g4dn", "2", "--for", "30m", "--on", str(tmp_path / "lab.json"), address]
        terminal = subprocess.Popen(
            [sys.executable, "-c", SCALE, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
        )
        terminals.put(terminal)
        assert terminal.wait(60) == -signal.SIGKILL

    assert stock.groups["eks-lab-1"]["MinSize"] == (2 if done else 0)
    end = stock.scheduled_actions["eks-lab-1"]
    assert (end["ScheduledActionName"], end["MinSize"]) == ("spotmpi-give-back-eks-lab-1", 0)
    reservation = timedelta(minutes=30)
    assert before + reservation <= datetime.fromisoformat(end["StartTime"]) <= datetime.now(UTC) + reservation
