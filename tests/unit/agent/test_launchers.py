"""The command lines that start ranks on other hosts, and what ranks get to know of the network."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import launch, launchers, node, preload, protocol
from spotmpi.agent.clock import CLOCK
from spotmpi.agent.context import AgentContext
from spotmpi.agent.launchers import LAUNCHERS, OpenMpi, Remote, Start
from spotmpi.agent.plan import COORDINATOR, NODE, WORKER, Command, Member
from spotmpi.images import environment as image_environment
from spotmpi.plan.agent_plan import AgentInputs, agent_plan
from spotmpi.spec.source import from_values
from tests.unit.agent.agent_process import mounts_below

REMOTE = Remote("/work/hosts", launchers.by_agent(["python3", "start.py", "/work/start.sock"]), "eth0")


def arguments(family: int, *own: str) -> str:
    return " ".join(on_hosts(OpenMpi("mpirun", family, remote=REMOTE, extra=own)))


def on_hosts(mpi: OpenMpi, ranks: int = 4) -> list[str]:
    return LAUNCHERS["mpirun"].arguments(Start(1, ranks, mpi=mpi))


def test_the_defaults_are_the_published_ones_in_each_familys_spelling() -> None:
    shared = "--bind-to none --map-by slot --mca pml ob1 --mca btl ^openib,ofi --mca btl_tcp_if_include eth0"
    assert arguments(5) == (
        f"mpirun --hostfile /work/hosts -np 4 {shared} --prtemca plm_ssh_no_tree_spawn 1 "
        "--prtemca prte_if_include eth0 --prtemca plm_ssh_agent python3 start.py /work/start.sock --output tag"
    )
    assert arguments(4) == (
        f"mpirun --hostfile /work/hosts -np 4 {shared} --mca plm_rsh_no_tree_spawn 1 "
        "--mca btl_vader_single_copy_mechanism none --mca oob_tcp_if_include eth0 "
        "--mca orte_do_not_resolve 1 --mca plm_rsh_agent python3 start.py /work/start.sock --tag-output"
    )


def test_a_user_who_wants_ssh_gets_it() -> None:
    assert "start.py" not in arguments(5, "--prtemca", "plm_ssh_agent", "ssh")
    assert "start.py" not in arguments(4, "--mca", "plm_rsh_agent", "ssh")


@pytest.mark.parametrize(
    ("launcher", "nodes", "own", "expected"),
    [
        ("mpirun", 2, [], False),
        ("mpirun", 2, ["--prtemca", "plm_ssh_agent", "ssh"], True),
        ("mpirun", 2, ["--mca", "plm_rsh_agent", "ssh"], True),
        ("torchrun", 2, [], False),
        ("none", 2, [], True),
        ("none", 1, [], False),
    ],
)
def test_names_are_needed_by_commands_and_by_ssh_alone(
    launcher: str, nodes: int, own: list[str], expected: bool
) -> None:
    assert launchers.needs_names(launcher, nodes, own) is expected


@pytest.mark.parametrize("family", [4, 5])
@pytest.mark.parametrize(
    ("own", "replaced"),
    [
        ("--bind-to core", " --bind-to none"),
        ("-bind-to core", " --bind-to none"),
        ("--map-by=node", " --map-by slot"),
        ("-mca pml ucx", " --mca pml ob1"),
        ("--mca btl tcp,self", " --mca btl ^openib,ofi"),
        ("--mca btl_tcp_if_exclude lo,docker0", " --mca btl_tcp_if_include eth0"),
        ("-x A --mca coll ^hcoll", ""),
        ("-x map-by", ""),  # a variable of that name
    ],
)
def test_arguments_of_the_users_replace_the_default_that_they_set(own: str, replaced: str, family: int) -> None:
    plain = arguments(family)
    assert replaced in plain
    assert arguments(family, *own.split()) == f"{plain.replace(replaced, '')} {own}"


def test_libfabric_is_left_out_unless_ranks_use_it() -> None:
    fabric = on_hosts(OpenMpi("mpirun", 5, remote=REMOTE._replace(fabric=True)))
    assert fabric[fabric.index("btl") + 1] == "^openib"
    assert launchers.transport_environment(["PATH"]) == {"OMPI_MCA_btl": "^ofi"}
    assert not launchers.transport_environment(["OMPI_MCA_btl"])
    assert not launchers.transport_environment(["FI_PROVIDER"])


def test_a_run_on_one_node_meets_itself_on_any_interface() -> None:
    alone = on_hosts(OpenMpi("mpirun", 5, remote=REMOTE._replace(interface="lo")))
    assert "prte_if_include" not in alone and "btl_tcp_if_include" in alone


@pytest.mark.parametrize(
    ("version", "family"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/", 4),
        ("mpirun (Open MPI) 5.0.8", 5),
        ("mpirun (Open MPI) 10.1", 10),
        ("HYDRA build details:\n    Version: 4.2", 5),
        ("", 5),
    ],
)
def test_the_family_is_the_major_version_of_open_mpi(version: str, family: int) -> None:
    assert launchers.family(version) == family


def test_only_open_mpi_4_tags_pieces_of_lines() -> None:
    assert launchers.tags_pieces(on_hosts(OpenMpi("mpirun", 4)))
    assert launchers.tags_pieces(on_hosts(OpenMpi("mpirun", 4, remote=REMOTE)))
    assert not launchers.tags_pieces(on_hosts(OpenMpi("mpirun", 5, root=True)))
    assert not any(
        launchers.tags_pieces(LAUNCHERS[name].arguments(Start(1, 2))) for name in LAUNCHERS if name != "mpirun"
    )


def test_a_hostfile_has_a_line_for_each_host() -> None:
    assert launchers.hostfile(["run-0", "run-1"], 4) == "run-0 slots=4\nrun-1 slots=4\n"


def test_a_pool_has_a_scheduler_alone_or_with_the_command_of_its_driver() -> None:
    scheduler = ["python", "-m", "spotmpi.programs.pool.scheduler", "--workers=3", "--interruptions=7"]
    assert launchers.pool_scheduler("python", 3, 7) == scheduler
    assert launchers.pool_scheduler("python", 3, 7, driver=90.5) == [*scheduler, "--driver-limit=90.5"]
    limited = launchers.pool_scheduler("python", 3, 7, 0.0, 60.0, 600.0)
    assert limited == [*scheduler, "--start-limit=0", "--driver-limit=60", "--replacement-limit=600"]
    driver = ["python", "-m", "spotmpi.programs.pool.driver", *limited[3:], "--", "python3", "scan.py"]
    assert launchers.pool_driver(limited, ["python3", "scan.py"], None) == driver


def test_a_worker_of_a_pool_knows_its_number_scheduler_and_folder() -> None:
    worker = launchers.pool_worker("python", "worker/2", "tls://10.0.0.1:8786", "/work/code")
    options = ["--worker=worker/2", "--address=tls://10.0.0.1:8786", "--folder=/work/code"]
    assert worker == ["python", "-m", "spotmpi.programs.pool.worker", *options]


@pytest.fixture
def mpirun() -> str:
    """The real mpirun of an image's environment, where it is installed."""
    mpirun = image_environment.location("chainermn") / "bin" / "mpirun"
    if not mpirun.is_file():
        pytest.skip("the chainermn image's environment is not installed yet: tests of programs install it")
    return str(mpirun)


@pytest.mark.parametrize("own", ["--bind-to core", "--map-by node:OVERSUBSCRIBE", "--mca btl self,sm"])
def test_a_real_open_mpi_takes_the_users_argument_in_the_place_of_the_default(
    mpirun: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    (tmp_path / "hosts").write_text(f"{socket.gethostname()} slots=2\n")
    remote = Remote(str(tmp_path / "hosts"), launchers.by_agent(["/bin/false"]), "lo")
    command = on_hosts(OpenMpi(mpirun, 5, remote=remote, extra=own.split()), 2)
    rank = ["sh", "-c", 'echo "$OMPI_COMM_WORLD_SIZE ranks"']

    result = subprocess.run([*command, *rank], capture_output=True, text=True, timeout=60)

    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(result.stdout.splitlines()) == ["[1,0]<stdout>: 2 ranks", "[1,1]<stdout>: 2 ranks"]


def context_of(tmp_path: Path, **values: Any) -> AgentContext:
    spec = from_values({"command": ["train"], "nodes": 2, **values})
    plan = agent_plan(spec, "run-1", AgentInputs({}, {}))
    plan["hosts"] = ["127.0.0.1"] * 2
    return AgentContext(plan, Member(NODE, 1), 0, None, mounts_below(str(tmp_path)), CLOCK)


def commands_of(context: AgentContext, environment: dict[str, str]) -> list[Command]:
    return launch.gang_commands(context.plan, [0], node.location(context._replace(member=COORDINATOR), environment))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pod's mounts; every tool is on PATH."""
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(shutil, "which", lambda name, path=None: "/bin/true")
    return tmp_path


@pytest.mark.parametrize("launcher", ["torchrun", "none", "mpirun"])
def test_ranks_of_every_launcher_get_the_interface_that_leads_to_their_peers(work: Path, launcher: str) -> None:
    context = context_of(work, launcher=launcher)

    environment = node.write_environment(context, 1)
    (command,) = commands_of(context, environment)

    environment_file = json.loads((work / "work" / "environment.json").read_text())
    for variables in (environment_file, environment):
        assert (variables["NCCL_SOCKET_IFNAME"], variables["GLOO_SOCKET_IFNAME"]) == ("lo", "lo")
    assert str(work / "work" / "environment.json") in command["arguments"]
    assert ("--tag" in command["arguments"]) is (launcher == "torchrun")


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed", "none"])
def test_ranks_meet_at_the_address_by_which_agents_are_connected(work: Path, launcher: str) -> None:
    """Name servers with a cache lead to the pod that node 0 had before for seconds; no name need resolve."""
    context = context_of(work, launcher=launcher)
    context.plan["hosts"] = ["run-1-node-0-0.run-1", "run-1-node-1-0.run-1"]
    for number, peer in ((1, "127.0.0.1"), (0, "127.0.0.2")):
        own = node.connected(context._replace(member=Member(NODE, number)), peer)
        environment = node.write_environment(own, 1)
        (command,) = launch.gang_commands(own.plan, [number], node.location(own, environment))
        assert environment["GLOO_SOCKET_IFNAME"] == "lo"
        text = " ".join([*command["arguments"], *command["environment"].values()])
        assert re.search(r"\b127\.0\.0\.1\b", text) and "run-1-node" not in text


@pytest.mark.parametrize(("peer", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_workers_and_ranks_find_the_scheduler_of_a_stream_by_that_address(work: Path, peer: str, host: str) -> None:
    stream = {"source": "flow:rows", "length": 3, "workers": {"count": 2}}
    context = context_of(work, launcher="none", stream=stream)
    context.plan["environment"][protocol.ENV_POOL] = "tls://run-1-node-0-0.run-1:8786"
    for member in (Member(NODE, 1), Member(WORKER, 0)):
        own = node.connected(context._replace(member=member), peer)
        environment = node.write_environment(own, 1)
        assert environment[protocol.ENV_POOL] == f"tls://{host}:8786"
    worker = launch.worker_command(own.plan, Member(WORKER, 0), node.location(own, environment), "/")
    assert f"--address=tls://{host}:8786" in worker["arguments"]


def test_node_0_alone_needs_no_name_server(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.1")
    context = context_of(work, launcher="none", nodes=1)._replace(member=COORDINATOR)
    context.plan["hosts"] = ["run-1-node-0-0.invalid"]
    own = node.connected(context, None)
    assert node.write_environment(own, 1)["GLOO_SOCKET_IFNAME"] == "lo"
    assert node.location(own, {}).address == "127.0.0.1"


def test_a_fork_server_starts_before_another_node_has_a_name(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the ranks of node 0's first attempt were new interpreters, where DNS had no other pod yet."""
    started: list[Any] = []
    monkeypatch.setattr(preload, "serve", lambda *arguments: started.append(arguments))
    context = context_of(work, command=["python3", "train.py"], preload=["numpy"], launcher="mpirun")
    context.plan["hosts"] = ["no-such-host.invalid"] * 2
    node.serve_forks(context._replace(member=COORDINATOR))
    assert len(started) == 1


@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, "^ofi"), ({"OMPI_MCA_btl": "self,sm"}, "self,sm"), ({"FI_PROVIDER": "efa"}, None)],
    ids=["nothing chosen", "a transport of the spec's", "EFA"],
)
def test_ranks_without_mpirun_leave_libfabric_out_too(work: Path, own: dict[str, str], expected: str | None) -> None:
    environment = node.write_environment(context_of(work, launcher="none", env=own), 1)
    assert environment.get("OMPI_MCA_btl") == expected


@pytest.mark.parametrize(("own", "expected"), [({}, "^openib,ofi"), ({"FI_PROVIDER": "efa"}, "^openib")])
def test_mpirun_in_a_pod_probes_libfabric_only_for_efa(work: Path, own: dict[str, str], expected: str) -> None:
    context = context_of(work, launcher="mpirun", env=own)
    environment = node.write_environment(context, 1)
    command = commands_of(context, environment)[0]["arguments"]
    assert command[command.index("btl") + 1] == expected
    assert "OMPI_MCA_btl" not in environment  # ranks get this file after mpirun has set what the user's arguments say


def test_an_interface_that_the_user_names_for_nccl_is_nccls_alone(work: Path) -> None:
    context = context_of(work, launcher="mpirun", nccl={"SOCKET_IFNAME": "^docker0"})
    environment = node.write_environment(context, 1)
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("^docker0", "lo")
    command = " ".join(commands_of(context, environment)[0]["arguments"])
    assert "--mca btl_tcp_if_include lo" in command
