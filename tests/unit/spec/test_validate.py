"""All problems of a spec at a target, reported at once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spotmpi.core.errors import InputError, Problem
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import from_values
from spotmpi.spec.validate import CHECKS, Check, TargetCapabilities, require_valid, validate

TARGET = TargetCapabilities(
    programs={"chainermn": ("allreduce", "digits"), "pytorch": ("digits", "ssd")},
    tools=frozenset({"mpirun", "torchrun", "none"}),
    gpus=2,
    processes=64,
    variables=frozenset({"TOKEN"}),
)
GOOD: dict[str, Any] = {"image": "chainermn", "program": "digits"}
COMMAND: dict[str, Any] = {"command": ["x"]}
RUN_VOLUME = ("/spotmpi/volume", "/kept")


def problems(values: dict[str, Any], capabilities: TargetCapabilities = TARGET) -> list[str]:
    return [str(problem) for problem in validate(from_values(values), capabilities)]


@pytest.mark.parametrize(
    "values",
    [{"args": ["caf\udce9.py"]}, {"env": {"A": "\udce9"}}, {"stream": {"source": "/set\udce9", "batch": 1}}],
)
def test_a_name_that_is_not_utf8_is_refused_since_no_record_can_hold_it(values: dict[str, Any]) -> None:
    (key,) = values
    (line,) = [line for line in problems({**COMMAND, **values}) if line.startswith(f"{key} = ")]
    assert line.endswith(": has a name that is not UTF-8, which a run cannot record; rename it")


@pytest.mark.parametrize(
    "values",
    [
        GOOD,
        {"command": ["python3", "train.py"]},
        {"command": ["true"], "launcher": "none", "run_on": "first", "nodes": 4},
        {"image": "pytorch", "program": "ssd", "launcher": "torchrun", "resources": {"gpu": 1}, "slots": 2},
        {**COMMAND, "env": {"_A1": "", "b": "any\nthing"}},
        {**COMMAND, "metrics": {"pattern": r"it (?P<iteration>\d+)", "samples_per_iteration": 3}},
        {
            **GOOD,
            "mpi": {"args": ["--mca", "pml", "ucx", "--bind-to", "core", "-x", "A"]},
            "env_passthrough": ["TOKEN"],
        },
        {**COMMAND, "kubernetes": {"mounts": [{"path": "/a", "claim": "c"}, {"path": "/a/b", "empty": "1Gi"}]}},
        {**COMMAND, "kubernetes": {"mounts": [{"path": "/spotmpix", "secret": "s"}]}},
        {**COMMAND, "kubernetes": {"secret_env": {"HF_TOKEN": "hugging-face/token"}}},
    ],
)
def test_a_spec_that_fits_has_no_problem(values: dict[str, Any]) -> None:
    assert problems(values) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "program: give a program or a command"),
        ({**GOOD, **COMMAND}, "program = 'digits': give either a program or a command, not both"),
        ({"command": []}, "command = []: write the command as a list"),
        ({"command": [""]}, "command = ['']: write the command as a list"),
        ({**COMMAND, "args": ["a\0b"]}, "args = ['a\\x00b']: contains a zero byte, which no argument can hold"),
        ({"command": ["x", "\0"]}, "command = ['x', '\\x00']: contains a zero byte, which no argument can hold"),
        ({**COMMAND, "mpi": {"args": ["\0"]}}, "mpi.args = ['\\x00']: contains a zero byte"),
        ({**COMMAND, "nccl": {"DEBUG": "\0"}}, "nccl.DEBUG = '\\x00': contains a zero byte"),
        ({**COMMAND, "nccl": {"DEBUG LEVEL": "1"}}, "nccl.DEBUG LEVEL = '1': names of variables have letters"),
        ({"image": "caffe", "program": "digits"}, "image = 'caffe': use one of: chainermn, pytorch"),
        ({"program": "digits"}, "image: a program needs one of the images: chainermn, pytorch"),
        ({"image": "chainermn", "program": "ssd"}, "program = 'ssd': the chainermn image has: allreduce, digits"),
        ({**COMMAND, "launcher": "none", "slots": 2}, 'slots = 2: "none" starts one process per node'),
        ({**GOOD, "run_on": "first"}, "run_on = 'first': needs launcher = \"none\""),
        ({**GOOD, "slots": 10**9}, "nodes = 1: 1 node x 1,000,000,000 slots exceed"),
        ({**COMMAND, "metrics": {"pattern": "("}}, "metrics.pattern = '(': is not a regular expression"),
        ({**COMMAND, "metrics": {"pattern": "a{9999999999}"}}, "metrics.pattern = 'a{9999999999}': is not a regular"),
        ({**GOOD, "metrics": {"samples_per_iteration": 3}}, "metrics.samples_per_iteration = 3: the programs of an"),
    ],
)
def test_each_problem_has_field_value_and_remedy(values: dict[str, Any], expected: str) -> None:
    (problem,) = problems(values)
    assert problem.startswith(expected)


def test_keys_of_a_deadline_without_one_and_of_simulations_alone_are_refused_together() -> None:
    spec = {"command": ["true"], "capacity": {"budget": 5, "zones": ["b"], "speeds": [0.5, 1], "prices": {"g5": 1}}}
    assert problems(spec) == [
        "capacity.speeds = [0.5, 1.0]: only `spotmpi simulate` uses the speeds of numbers of nodes: remove it",
        "capacity.budget = 5.0: is for a deadline: set capacity.deadline, or remove it",
        "capacity.prices = { g5 = 1.0 }: is for capacity.order or a deadline: set one, or `price`",
    ]


def test_numbers_of_nodes_that_cannot_share_the_batch_are_refused_with_those_that_can() -> None:
    values = {**GOOD, "args": ["--global-batch=48", "--epochs", "1"], "nodes": [2, 3, 4, 5, 7]}
    assert problems({**values, "nodes": [2, 3, 4]}) == []
    assert problems(values) == [
        "nodes = [2, 3, 4, 5, 7]: 5 and 7 nodes cannot share a global batch of 48 samples equally: use [2, 3, 4], or "
        "another batch"
    ]
    assert problems({**values, "slots": 10, "nodes": [2, 3]}) == [
        "nodes = [2, 3]: 2 and 3 nodes of 10 slots cannot share a global batch of 48 samples equally: use another batch"
    ]
    assert problems({**values, "args": ["--global-batch", "\N{SUPERSCRIPT TWO}"]}) == [], "the program refuses it"
    own = {**COMMAND, "nodes": [2, 4], "metrics": {"samples_per_iteration": 6}}
    assert problems(own) == [
        "nodes = [2, 4]: 4 nodes cannot share a global batch of 6 samples equally: use [2], or another batch"
    ]


def test_what_cannot_be_with_several_numbers_of_nodes_is_said_at_once() -> None:
    target = TARGET._replace(persistent=())
    values = {
        **COMMAND,
        "nodes": [2, 4],
        "launcher": "none",
        "run_on": "first",
        "stream": {"source": "s3://bucket/set", "batch": 1},
        "standby": 1,
        "checkpoint": {"memory": "1"},
        "kubernetes": {"queue": "gpus"},
    }
    remedies = [line for line in problems(values, target) if line.startswith("nodes = [2, 4]: ")]
    assert [line.partition(": ")[2] for line in remedies] == [
        'the command runs on one node: give one number, or run_on = "all"',
        "a stream is for a fixed number of nodes: give one number, or remove [stream]",
        "checkpoints need a run volume: set kubernetes.volume to a claim",
        "Kueue admits all pods of a run or none: give one number, or remove kubernetes.queue",
        "copies of checkpoints in memory need fixed nodes: give one number, or remove it",
        "nodes beyond those of an attempt stand by already: give one number, or remove standby",
    ]


def test_a_job_of_slurms_has_one_number_of_nodes() -> None:
    target = TARGET._replace(several_sizes=False)
    assert problems({**GOOD, "nodes": [2, 4]}, target) == [
        'nodes = [2, 4]: a Slurm job has a fixed number of nodes: give one number, or use on="kubernetes"'
    ]


def test_a_batch_of_each_rank_would_change_with_the_number_of_nodes() -> None:
    values = {**GOOD, "args": ["--batch-per-worker", "8"], "nodes": [2, 4]}
    assert problems(values) == [
        "args = '--batch-per-worker 8': the global batch would change with the number of nodes: give that instead, as "
        "`--global-batch`"
    ]


def test_a_deadline_needs_the_time_of_the_work_a_run_volume_and_no_order() -> None:
    tools = frozenset({"none"})
    target = TargetCapabilities(
        persistent=(), tools=tools, capacity=(Problem("capacity.zones", "b", "the target's own"),)
    )
    spec = {"command": ["true"], "launcher": "none", "capacity": {"deadline": "30h", "order": ["g5"]}}
    assert problems(spec, target)[:4] == [
        "capacity.order = ['g5']: capacity.deadline decides the order: remove one of the two",
        'capacity.work: needed for capacity.deadline: the time that the work takes without interruption, such as "20h"',
        "kubernetes.volume: needed for capacity.deadline, or each move starts from zero: name a claim for the run "
        "volume",
        "capacity.zones = 'b': the target's own",
    ]


@pytest.mark.parametrize(
    ("values", "persistent", "expected"),
    [
        ({}, None, ['only pods stand by for lost nodes: leave it out, or use on="kubernetes"']),
        ({}, RUN_VOLUME, []),
        ({}, (), ["needs a run volume: set kubernetes.volume to a claim"]),
        ({"nodes": 1}, RUN_VOLUME, ["node 0 is not taken over by another pod: use more nodes"]),
        ({"kubernetes": {"queue": "team"}}, RUN_VOLUME, []),
        ({"capacity": {"order": ["g5"]}}, RUN_VOLUME, []),
        ({"capacity": {"deadline": "30h", "work": "20h"}}, RUN_VOLUME, []),
        ({"checkpoint": {"memory": "1"}}, RUN_VOLUME, []),
        (
            {"launcher": "pool", "nodes": 1, "pool": {"count": 2}},
            RUN_VOLUME,
            ["a pool restarts its workers by itself: give more of them as pool.count"],
        ),
        (
            {"stream": {"source": "s3://b/*.csv", "prepare": "m:f"}},
            RUN_VOLUME,
            [],
        ),
    ],
    ids=["not a cluster", "fits", "no volume", "one node", "queue", "order", "deadline", "memory", "pool", "stream"],
)
def test_pods_stand_by_where_they_can_take_the_place_of_a_lost_one(
    values: dict[str, Any], persistent: tuple[str, ...] | None, expected: list[str]
) -> None:
    spec = {**COMMAND, "launcher": "none", "nodes": 2, "standby": 1, **values}
    target = TargetCapabilities(tools=frozenset({"none"}), persistent=persistent)
    found = [problem for problem in problems(spec, target) if problem.startswith("standby")]
    assert found == [f"standby = 1: {each}" for each in expected]


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("--no-requeue", "goes on after a lost or preempted node by its requeued job; remove it"),
        ("--array=0-3", "a run is one job; remove it, and start a run for each value, as `spotmpi bench` does"),
        ("-a 0-3", "a run is one job"),
        ("--job-name=mine", "the job of a run is found by its name, which is the run's id; remove it"),
        ("-Jmine", "the job of a run is found by its name"),
        ("--nodes 2", "a run has as many nodes as its spec says; remove it, and set `nodes`"),
        ("-n4", "each node has one agent, which starts its ranks; remove it, and set `nodes` and `slots`"),
        ("--ntasks-per-node=4", "each node has one agent, which starts its ranks; remove it, and set `slots`"),
        ("--wait", "the run would be followed only after its end"),
    ],
)
def test_options_of_sbatch_with_which_a_job_is_no_run_are_refused(argument: str, remedy: str) -> None:
    job = {**COMMAND, "launcher": "none", "slurm": {"args": ["--account=me", argument]}}
    (found,) = problems(job)
    assert found.startswith(f"slurm.args = {argument!r}: ") and remedy in found


def test_other_options_of_sbatch_are_the_users_choice() -> None:
    args = ["-A me", "--nodelist=n1", "-w n1", "--time=1:00:00", "--ntasks-per-core=1", "--wait-all-nodes=1"]
    assert problems({**COMMAND, "launcher": "none", "slurm": {"args": args}}) == []


@pytest.mark.parametrize(
    ("values", "script"),
    [
        ({"command": ["python3", "train.py", "--lr", "1"]}, "train.py"),
        ({"command": ["python3.11", "-u", "src/train.py"]}, "src/train.py"),
        ({"command": ["bash", "-e", "run.sh"]}, "run.sh"),
        ({"command": ["python3", "train.py"], "code": "."}, None),
        ({"command": ["python3", "train.py"], "files": ["train.py"]}, None),
        ({"command": ["python3", "train.py"], "kubernetes": {"templates": ["configmap:mount"]}}, None),
        ({"command": ["python3", "/opt/train.py"]}, None),
        ({"command": ["python3", "-m", "train.py"]}, None),
        ({"command": ["bash", "-c", "python3 train.py"]}, None),
        ({"command": ["train", "train.py"]}, None),
    ],
)
def test_a_script_that_pods_cannot_have_is_refused_before_they_are_requested(
    values: dict[str, Any], script: str | None
) -> None:
    """With the spec of `spotmpi init` nodes were paid for, and attempts failed since no pod had the script."""
    pods = TargetCapabilities(tools=frozenset({"none"}), persistent=(), programs={})
    here = pods._replace(persistent=None)
    spec = {"launcher": "none", **values}
    found = [each for each in problems(spec, pods) if each.startswith("command")]
    remedy = 'is not in the pods: ship its folder with `code = "."`, or it alone with `files`'
    assert found == ([f"command = {script!r}: {remedy}"] if script else [])
    assert not [each for each in problems(spec, here) if each.startswith("command")]


def test_each_missing_capability_of_the_target_is_a_problem() -> None:
    bare = TargetCapabilities(tools=frozenset({"none"}), data_is_folder=False, command_found=False)
    offered = bare._replace(launcher_image="pytorch")
    assert problems({**COMMAND, "data": "/nowhere", "launcher": "torchrun"}, offered) == [
        "command = 'x': command not found; check the name, PATH, `code` and `files`",
        "launcher = 'torchrun': no python3 with the module torch on PATH: install it, or name an image that has it, "
        'such as image = "pytorch"',
        "data = '/nowhere': not a readable folder; check the path",
    ]
    assert problems({**COMMAND, "launcher": "deepspeed"}, bare._replace(command_found=True, data_is_folder=True)) == [
        "launcher = 'deepspeed': no python3 with the module deepspeed on PATH: install it"
    ]
    bare = TARGET._replace(tools=frozenset({"mpirun"}))
    assert problems({"image": "pytorch", "program": "ssd", "launcher": "torchrun"}, bare) == [
        "launcher = 'torchrun': the pytorch image has no torchrun: use one of: mpirun"
    ]


def test_a_machine_that_cannot_run_jobs_is_one_problem_whatever_else_it_lacks() -> None:
    bare = TargetCapabilities(lacks="runs on this machine need Linux; use another", command_found=False)
    assert problems({**COMMAND, "nodes": 2, "launcher": "mpirun"}, bare) == [
        "on = 'local': runs on this machine need Linux; use another"
    ]


def test_a_limit_needs_a_price_and_pays_at_least_for_a_checkpoint() -> None:
    spec = from_values({**COMMAND, "launcher": "none", "limits": {"cost": 1.0}})

    def capabilities(rate: float | None) -> TargetCapabilities:
        return TargetCapabilities(tools=frozenset({"none"}), rate=rate)

    assert [str(problem) for problem in validate(spec, capabilities(None))] == [
        "price: needed for limits.cost: set the price of a node, in US dollars per hour"
    ]
    assert [str(problem) for problem in validate(spec, capabilities(120.0))] == [
        "limits.cost = 1.0: pays for 30.0 s at $120 an hour, but checkpoint.grace alone is 1m: raise it"
    ]
    assert len(validate(spec, capabilities(60.0))) == 1, "a checkpoint and nothing else"
    assert validate(spec, capabilities(59.9)) == []
    assert validate(from_values({**COMMAND, "launcher": "none"}), capabilities(None)) == []
    by_deadline = from_values(
        {
            **COMMAND,
            "launcher": "none",
            "capacity": {"deadline": "3h", "work": "2h", "budget": 1.0},
            "limits": {"cost": 2},
        }
    )
    assert [str(validate(by_deadline, capabilities(rate))[0]) for rate in (None, 120.0)] == [
        "price: needed for capacity.budget: set the price of a node, in US dollars per hour",
        "capacity.budget = 1.0: pays for 30.0 s at $120 an hour, but checkpoint.grace alone is 1m: raise it",
    ]


def test_the_margin_of_a_notice_is_part_of_the_grace() -> None:
    assert problems({**GOOD, "checkpoint": {"grace": "2m", "margin": "2m"}}) == []
    assert problems({**GOOD, "checkpoint": {"margin": "61s"}}) == [
        "checkpoint.margin = '61s': is part of checkpoint.grace, which is 1m: at most that"
    ]


def test_code_of_the_users_is_a_folder_for_a_command() -> None:
    assert problems({**COMMAND, "code": "/mine"}) == []
    assert problems({**GOOD, "code": "/mine"}, TARGET._replace(code_is_folder=False)) == [
        "code = '/mine': is for a command of your own; the programs of an image bring their code",
        "code = '/mine': not a readable folder; check the path",
    ]
    assert problems(COMMAND, TARGET._replace(code_is_folder=False)) == []


def test_a_target_may_be_used_up_to_its_processes_and_gpus() -> None:
    most = {**GOOD, "nodes": 2, "slots": 2, "resources": {"gpu": 1}}
    assert problems(most, TARGET._replace(processes=4, gpus=4)) == []
    assert problems(most, TARGET._replace(processes=None, gpus=4)) == []
    assert problems(most, TARGET._replace(processes=3, gpus=3)) == [
        "nodes = 2: 2 nodes x 2 slots exceed the 3 processes possible here",
        "resources.gpu = 1: requested 4 GPUs, 3 available; with 0 the program runs on CPUs",
    ]


def test_a_cluster_without_node_groups_has_none_to_choose_from() -> None:
    requested = {"node_groups": ["g5"], "placement_group": False}
    remedy = 'needs an environment with node groups: use on="STACK", or node_selector'
    assert problems({**GOOD, "kubernetes": requested}, TARGET._replace(persistent=RUN_VOLUME)) == [
        f"kubernetes.node_groups = ['g5']: {remedy}",
        f"kubernetes.placement_group = false: {remedy}",
    ]
    assert problems({**GOOD, "kubernetes": requested}) == [], "elsewhere nobody reads them"


def test_an_image_that_pods_could_pull_is_given_by_its_reference() -> None:
    expected = "image = 'caffe': use one of: chainermn, pytorch"
    values = {"image": "caffe", "command": ["x"]}
    assert problems(values) == [expected]
    assert problems(values, TARGET._replace(persistent=RUN_VOLUME)) == [
        f'{expected}; pods pull any other image by its reference, such as image="REGISTRY/caffe:TAG"'
    ]


def test_each_file_that_is_shipped_can_be_read_and_has_a_name_of_its_own() -> None:
    files = ["/a/one.py", "/b/two.py", "/b/one.py", "/", "/c/lost.py", "/b/two.py"]
    assert problems({**COMMAND, "files": files}, TARGET._replace(unreadable_files=(files[4],))) == [
        "files = '/b/one.py': another file has the name one.py too; rename one of them",
        "files = '/': has no name under which it could be shipped; name what is needed in it",
        "files = '/c/lost.py': not a readable file or folder; check the path",
        "files = '/b/two.py': is named twice: name it once",
    ]
    assert problems({**GOOD, "files": ["/a"]}) == [
        "files = ['/a']: is for a command of your own; the programs of an image bring their code"
    ]


NAMES = "names of variables have letters, digits and _ only, and no digit first"
RANKS = "the spec determines number and place of ranks:"
MOUNTS = ("/dev/shm", "/dev", "/etc/passwd", "/spotmpi/x", "/etc", "/device", "/a/", "/etc", "b", "/../b", "/", "//b")
PATTERN = ["metrics.pattern = '(?P<waited>a)(?P<ranks>b)(?P<seconds>c)'"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            {
                "env": {"A B": "\0", "": "1", "A=B": "1", "SPOTMPI_RUN": "1", "_OK": "1"},
                "env_passthrough": ["SPOTMPI_RUN", "A=b", "HOMEE", "_OK", "TOKEN"],
            },
            {
                NAMES: ["env.A B = '\\x00'", "env. = '1'", "env.A=B = '1'"],
                "contains a zero byte, which no variable can hold; remove it": ["env.A B = '\\x00'"],
                "names that begin with SPOTMPI_ are reserved for the run": ["env.SPOTMPI_RUN = '1'"],
                f"{NAMES}, and do not begin with SPOTMPI_": [
                    "env_passthrough = 'SPOTMPI_RUN'",
                    "env_passthrough = 'A=b'",
                ],
                'is not set in this terminal: export it, or give it a value with overrides=["env.HOMEE=VALUE"]': [
                    "env_passthrough = 'HOMEE'"
                ],
                "also has a value in env or kubernetes.secret_env; remove one of them": ["env_passthrough = '_OK'"],
            },
            id="environment",
        ),
        pytest.param(
            {"preload": ["torch", "my.data", "a-b", "a.", ""]},
            {
                'is not the name of a module, such as "torch" or "mpi4py.MPI"': [
                    "preload = 'a-b'",
                    "preload = 'a.'",
                    "preload = ''",
                ]
            },
            id="preload",
        ),
        pytest.param(
            {
                "env": {"A": "1"},
                "env_passthrough": ["TOKEN"],
                "kubernetes": {
                    "secret_env": {
                        "TOKEN": "a/b",
                        "A": "a/b",
                        "SPOTMPI_RUN": "a/b",
                        "B": "a/b/c",
                        "C": "/b",
                        "D": "key",
                    }
                },
            },
            {
                "also has a value in env or kubernetes.secret_env; remove one of them": ["env_passthrough = 'TOKEN'"],
                "env.A sets it too; remove one of them": ["kubernetes.secret_env.A = 'a/b'"],
                f"{NAMES}, and do not begin with SPOTMPI_": ["kubernetes.secret_env.SPOTMPI_RUN = 'a/b'"],
                'write it as SECRET/KEY, such as "wandb/api-key"': [
                    "kubernetes.secret_env.B = 'a/b/c'",
                    "kubernetes.secret_env.C = '/b'",
                    "kubernetes.secret_env.D = 'key'",
                ],
            },
            id="secrets",
        ),
        pytest.param(
            {"kubernetes": {"labels": {"spotmpi.dev/run": "other-1", "app.kubernetes.io/managed-by": "helm"}}},
            {
                "spotmpi finds its runs by this label: choose another key": [
                    "kubernetes.labels.spotmpi.dev/run = 'other-1'",
                    "kubernetes.labels.app.kubernetes.io/managed-by = 'helm'",
                ]
            },
            id="labels",
        ),
        pytest.param(
            {"mpi": {"args": ["-n", "-np", "-N", "-host", "-x", "n", "--npernode=2", "--hostfile=h"]}},
            {
                f"{RANKS} use nodes and slots": ["mpi.args = '-n'", "mpi.args = '-np'"],
                f"{RANKS} use slots": ["mpi.args = '-N'", "mpi.args = '--npernode=2'"],
                f"{RANKS} use nodes": ["mpi.args = '-host'", "mpi.args = '--hostfile=h'"],
            },
            id="mpi",
        ),
        pytest.param(
            {"kubernetes": {"mounts": [{"path": path, "claim": "c"} for path in MOUNTS]}},
            {
                "is used by spotmpi itself, as are /spotmpi, /dev/shm, /etc/passwd, /etc/group; choose another path": [
                    "kubernetes.mounts.0.path = '/dev/shm'",
                    "kubernetes.mounts.1.path = '/dev'",
                    "kubernetes.mounts.2.path = '/etc/passwd'",
                    "kubernetes.mounts.3.path = '/spotmpi/x'",
                ],
                "write an absolute path below /, without .. and without a slash at its end": [
                    "kubernetes.mounts.6.path = '/a/'",
                    "kubernetes.mounts.8.path = 'b'",
                    "kubernetes.mounts.9.path = '/../b'",
                    "kubernetes.mounts.10.path = '/'",
                    "kubernetes.mounts.11.path = '//b'",
                ],
                "is mounted twice; give one of them another path": ["kubernetes.mounts.7.path = '/etc'"],
            },
            id="mounts",
        ),
        pytest.param(
            {"metrics": {"pattern": "(?P<waited>a)(?P<ranks>b)(?P<seconds>c)"}},
            {
                "needs the named group (?P<iteration>...)": PATTERN,
                "the name ranks is reserved in run records: rename this group": PATTERN,
                "the name seconds is reserved in run records: rename this group": PATTERN,
                "the name waited is reserved in run records: rename this group": PATTERN,
            },
            id="metrics",
        ),
    ],
)
def test_every_problem_of_a_part_is_reported_and_nothing_else(
    values: dict[str, Any], expected: dict[str, list[str]]
) -> None:
    """The fields and values by their remedy."""
    messages = [f"{field}: {remedy}" for remedy, fields in expected.items() for field in fields]
    assert sorted(problems({**COMMAND, **values})) == sorted(messages)


def test_all_problems_are_raised_at_once() -> None:
    spec = from_values({"image": "caffe", "program": "x", "command": ["y"], "slots": 3, "launcher": "none"})

    with pytest.raises(InputError) as caught:
        require_valid(spec, TARGET)

    assert [problem.field for problem in caught.value.problems] == ["program", "image", "slots"]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("path", "persistent", "remedy"),
    [
        ("kept", RUN_VOLUME, None),
        ("/spotmpi/volume/kept", RUN_VOLUME, None),
        ("/kept", RUN_VOLUME, None),
        ("/anywhere", None, None),
        ("/tmp/kept", RUN_VOLUME, "use a relative path, or one in /spotmpi/volume, /kept"),
        ("../../../../tmp", RUN_VOLUME, "use a relative path, or one in /spotmpi/volume, /kept"),
        ("/keptt", RUN_VOLUME, "use a relative path, or one in /spotmpi/volume, /kept"),
        ("kept", ("/kept",), "use a relative path, or one in /kept"),
        ("kept", (), "set kubernetes.volume to a claim"),
    ],
)
def test_checkpoints_are_kept_where_they_outlive_a_pod_or_the_spec_is_refused(
    path: str, persistent: tuple[str, ...] | None, remedy: str | None
) -> None:
    messages = problems({**GOOD, "checkpoint": {"path": path}}, TARGET._replace(persistent=persistent))

    words = f"checkpoint.path = {path!r}: is on no volume that outlives the pods: {remedy}"
    assert messages == ([] if remedy is None else [words])


_KEYS = {
    "world_size": {"nodes", "slots"},
    "sizes": {"nodes"},
    "option": {"args"},
    "workers": {"pool", "stream"},
    "cost_limits": {"limits", "capacity"},
}


@pytest.mark.parametrize("check", [check for check, _ in CHECKS], ids=lambda check: check.__name__.strip("_"))
def test_a_check_reads_no_key_of_a_spec_except_those_listed_for_it(check: Check) -> None:
    read: set[str] = set()

    class Reads:
        """A spec that notes which of its keys are read."""

        def __init__(self, spec: JobSpec) -> None:
            self._spec = spec

        def __getattr__(self, name: str) -> Any:
            read.update(_KEYS.get(name, {name}))
            return getattr(self._spec, name)

    for values in (
        GOOD,
        COMMAND,
        {**GOOD, "nodes": [2, 4]},
        {**GOOD, "limits": {"cost": 1.0}, "metrics": {"pattern": "x"}},
    ):
        list(check(cast(JobSpec, Reads(from_values(values))), TARGET._replace(rate=1.0, persistent=())))

    assert read <= set(dict(CHECKS)[check].split())


def test_checks_that_depend_on_a_wrong_key_are_left_out() -> None:
    spec = from_values({"nodes": 65})

    assert [problem.field for problem in validate(spec, TARGET)] == ["program", "nodes"]
    assert [problem.field for problem in validate(spec, TARGET, ["slots", "no_such_key"])] == ["program"]
