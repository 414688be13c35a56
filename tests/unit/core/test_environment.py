"""The contract between the programs that build environments and the jobs that use them."""

import json
import subprocess
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from spotmpi.core import environment
from spotmpi.core.errors import InputError, SpotmpiError

OUTPUTS: dict[str, Any] = {
    "contract": 1,
    "name": "spotmpi-lab",
    "region": "us-east-1",
    "zone": "us-east-1a",
    "cluster": "spotmpi-lab",
    "cluster_arn": "arn:aws:eks:us-east-1:123456789012:cluster/spotmpi-lab",
    "namespace": "training",
    "volume_claim": "runs",
    "ssh_secret": "mpi-ssh",
    "placement_account": "spotmpi-placement",
    "repositories": {"chainermn": "1.dkr.ecr.us-east-1.amazonaws.com/spotmpi-lab/chainermn"},
    "node_groups": [
        {
            "group": None,
            "name": "g4dn",
            "zone": "us-east-1a",
            "type": "g4dn.xlarge",
            "market": "spot",
            "reservation": None,
            "gpus": 1,
            "vcpus": 4,
            "memory_mib": 16384,
            "allocatable_mib": 15454,
            "min": 0,
            "max": 2,
            "disk_gib": 100,
            "disk_throughput": 125,
            "public_address": True,
            "placement_group": False,
            "efa_interfaces": 0,
            "labels": {"spotmpi.dev/group": "g4dn"},
            "taint": {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        }
    ],
    "file_system_id": "fs-1",
    "access_point_id": "fsap-1",
}


def scripted_pulumi(stdout: str = "", stderr: str = "", status: int = 0) -> Mock:
    """Answers like `pulumi stack output`."""
    return Mock(return_value=subprocess.CompletedProcess([], status, stdout, stderr))


def test_a_file_of_stack_outputs_becomes_an_environment(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    path.write_text(json.dumps(OUTPUTS))
    loaded = environment.load(path)
    assert loaded.group("g4dn").taint.key == "nvidia.com/gpu"
    assert loaded.model_dump(mode="json") == OUTPUTS


@pytest.mark.parametrize(
    ("stack", "project", "options"), [(None, None, ""), ("lab", Path("/project"), " --stack lab --cwd /project")]
)
def test_pulumi_reads_the_named_stack_or_the_selected_one(
    stack: str | None, project: Path | None, options: str
) -> None:
    pulumi = scripted_pulumi(stdout=json.dumps(OUTPUTS))
    assert environment.of_stack(stack, project, pulumi).cluster == "spotmpi-lab"
    (command,) = pulumi.call_args.args
    assert " ".join(command) == f"pulumi stack output --json --non-interactive{options}"


def test_a_pulumi_that_takes_its_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said, texts = threading.Event(), list[str]()

    def print_message(text: str) -> None:
        texts.append(text)
        said.set()

    def read_slowly(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        assert said.wait(60)
        return subprocess.CompletedProcess([], 0, json.dumps(OUTPUTS), "")

    monkeypatch.setattr(environment, "print_message", print_message)
    monkeypatch.setattr(environment, "LONG_QUIET", 0.01)
    assert environment.of_stack("lab", run=read_slowly).cluster == "spotmpi-lab"
    assert texts[0].startswith("waiting for pulumi, which reads the state of stack lab, for ")


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("error: no stack named 'nope' found\n", "stack nope is not built: `spotmpi up nope` builds it, and `pulumi"),
        (
            "error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions",
            "pulumi is not logged in: set PULUMI_BACKEND_URL, for example to s3://my-state, or `pulumi login`",
        ),
        (
            "error: passphrase must be set with PULUMI_CONFIG_PASSPHRASE or PULUMI_CONFIG_PASSPHRASE_FILE",
            "the state of nope can't be decrypted: set PULUMI_CONFIG_PASSPHRASE to the one it was created with",
        ),
        ("error: something\n  odd\n", "pulumi could not read the outputs of stack nope: error: something odd"),
    ],
)
def test_why_pulumi_gives_no_outputs_is_one_line_with_the_remedy(printed: str, message: str) -> None:
    with pytest.raises(SpotmpiError) as refused:
        environment.of_stack("nope", run=scripted_pulumi(stderr=printed, status=255))
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_a_missing_pulumi_names_the_other_way() -> None:
    missing = Mock(side_effect=FileNotFoundError("pulumi"))
    with pytest.raises(SpotmpiError, match=r"command not found: pulumi, .* of stack lab; install it, or name a file"):
        environment.of_stack("lab", run=missing)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        pytest.param({}, "environment: the stack is not built, or .* `spotmpi up STACK`", id="never built"),
        pytest.param(OUTPUTS | {"contract": 2}, "contract = 2: this version of spotmpi reads contract 1", id="newer"),
    ],
)
def test_outputs_of_another_contract_are_refused_with_the_remedy(outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        environment.parse(outputs)


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    outputs = OUTPUTS | {"node_groups": [OUTPUTS["node_groups"][0] | {"market": "borrowed"}]}
    del outputs["zone"]
    with pytest.raises(InputError) as caught:
        environment.parse(outputs)
    assert {problem.field for problem in caught.value.problems} == {"node_groups.0.market", "zone"}


def test_outputs_that_this_version_does_not_know_are_left_alone() -> None:
    assert "ci_roles" not in environment.parse(OUTPUTS | {"ci_roles": {"preview": "arn"}}).model_dump()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 10**5, "is not JSON"),
        ("[]", "is not a JSON object"),
        ("\xff", "the byte 0xff is"),
    ],
)
def test_a_file_that_holds_no_outputs_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lab.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=message):
        environment.load(path)


def test_a_missing_file_is_named_even_if_its_path_is_long(tmp_path: Path) -> None:
    for path in (Path("none.json"), tmp_path.joinpath("long" * 20, "none.json")):
        with pytest.raises(InputError, match=r"none\.json.*No such file"):
            environment.load(path)


def test_the_error_for_an_unknown_node_group_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="environment spotmpi-lab has: g4dn"):
        environment.parse(OUTPUTS).group("p3")
