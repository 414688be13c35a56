"""A study from its file to its trials: which ones, in which order, with which roles."""

import itertools
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml

from spotmpi.api import studies
from spotmpi.core import names
from spotmpi.core.environment import NodeGroup
from spotmpi.core.errors import InputError
from spotmpi.spec.job import JobSpec
from spotmpi.spec.node_groups import Choice, choose
from spotmpi.spec.source import from_values, read_spec
from spotmpi.study import study_file
from spotmpi.study.study import BASELINE, MEASURED, WITHOUT_ALLREDUCE, StudyOptions, WrongStudy, grid_study
from tests.unit.spec.test_node_groups import group
from tests.unit.study.studies import GPU, problems_of, study_of

FOREIGN = {"command": ["train"], "launcher": "none"}


def test_the_full_grid_of_parameters_is_measured_each_repeat_in_an_order_of_its_own() -> None:
    study = study_of({"nodes": [1, 2], "slots": [1, 2], "double_buffering": [False, True]}, repeats=2)
    assert [variant.name for variant in study.variants] == [
        "slots 1, no double buffering",
        "slots 1, double buffering",
        "slots 2, no double buffering",
        "slots 2, double buffering",
    ]
    counted = Counter((trial.variant, trial.nodes) for trial in study.trials())
    assert set(counted.values()) == {2} and len(counted) == 8
    first, second = ([(t.variant, t.nodes) for t in study.trials() if t.repeat == repeat] for repeat in (1, 2))
    assert sorted(first) == sorted(second) and first != second
    assert [(t.number, t.repeat) for t in study.trials()] == [(at, 1 if at <= 8 else 2) for at in range(1, 17)]


def test_the_nodes_of_the_spec_are_measured_where_nothing_else_names_any() -> None:
    spec = {**GPU, "nodes": 2}
    study = study_of({"loader_processes": [0, 1]}, spec)
    assert (study.nodes, study_file.from_values(study.source["study"])) == ((2,), study)
    assert grid_study(from_values(spec), StudyOptions()).nodes == (2,)


def test_listed_configurations_may_name_different_parameters_and_take_the_others_from_the_parameters() -> None:
    listed = [{"double_buffering": False}, {"nodes": [2, 4], "double_buffering": True, "allreduce": "fp16"}]
    study = study_of({"nodes": [1, 2], "allreduce": ["fp32"]}, configurations=listed)
    assert study.configurations == (
        ("fp32 allreduce, no double buffering", 1),
        ("fp32 allreduce, no double buffering", 2),
        ("fp16 allreduce, double buffering", 2),
        ("fp16 allreduce, double buffering", 4),
    )
    unlike = study_of({"nodes": [1]}, FOREIGN, configurations=[{"slots": 1}, {"launcher": "none", "nodes": 2}])
    assert unlike.configurations == (("slots 1", 1), ("none", 2))


def test_trials_on_one_kind_of_node_stay_together() -> None:
    kinds = {kind: [f"kubernetes.node_selector={{kind='{kind}'}}"] for kind in ("a", "b", "c")}
    order = [trial.variant for trial in study_of({"kind": kinds, "nodes": [1, 2]}, repeats=4).trials()]
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert changes == 4 * 2  # two within each repeat, and none from one repeat to the next
    with_checks = study_of({"kind": kinds, "nodes": [1, 2]}, repeats=4, micro_benchmarks=True, baseline=True).trials()[
        :-1
    ]
    changes = sum(one.variant != other.variant for one, other in itertools.pairwise(with_checks))
    assert changes == 2 + 4 * 2  # two among the micro-benchmarks, and none from there to the baseline and the repeats


def test_trials_without_allreduce_are_paired_with_measured_ones_and_the_baseline_runs_before_and_after_all() -> None:
    trials = study_of({"nodes": [4, 2]}, repeats=2, without_allreduce=True, baseline=True).trials()
    assert [(trial.role, trial.nodes) for trial in (trials[0], trials[-1])] == [(BASELINE, 2)] * 2
    inner = trials[1:-1]
    for one, other in zip(inner[::2], inner[1::2], strict=True):
        assert {one.role, other.role} == {MEASURED, WITHOUT_ALLREDUCE}
        assert (one.nodes, one.repeat) == (other.nodes, other.repeat)
    assert len({trial.role for trial in inner[::2]}) == 2  # neither always comes first


def test_trials_without_allreduce_have_the_programs_option_and_several_ranks() -> None:
    study = study_of({"nodes": [1], "slots": [1, 2]}, repeats=1, without_allreduce=True)
    args = {(trial.variant, trial.role): study.spec_of(trial).args for trial in study.trials()}
    measured = args["slots 2", MEASURED]
    assert args == {
        ("slots 1", MEASURED): measured,
        ("slots 2", MEASURED): measured,
        ("slots 2", WITHOUT_ALLREDUCE): [*measured, "--no-allreduce"],
    }


def test_micro_benchmarks_run_first_on_each_kind_of_node_with_the_data_of_the_study() -> None:
    spec = {**GPU, "data": "voc"}
    kinds = {"a": ["kubernetes.node_selector={k='a'}"], "b": ["kubernetes.node_selector={k='b'}"]}
    study = study_of({"nodes": [1, 2, 4], "kind": kinds}, spec, repeats=1, micro_benchmarks=True, baseline=True)
    first = study.trials()[:5]
    assert sorted((trial.role, trial.variant, trial.nodes) for trial in first[:4]) == [
        (role, kind, 4) for role in ("allreduce", "read") for kind in ("a", "b")
    ]
    assert first[4].role == BASELINE
    micro_benchmark = study.spec_of(first[0])
    assert (micro_benchmark.program, micro_benchmark.args, micro_benchmark.image) == (first[0].role, [], "chainermn")
    assert micro_benchmark.data == study.spec.data
    alone = study_of({"nodes": [1]}, repeats=1, micro_benchmarks=True).trials()
    assert [trial.role for trial in alone] == [MEASURED]  # one rank, no data: there is nothing to micro_benchmark
    assert "need an image" in problems_of({"nodes": [1]}, FOREIGN, micro_benchmarks=True)[0]


def test_all_problems_come_at_once_and_each_only_once() -> None:
    messages = problems_of({"nodes": [1, 3, 5], "framework": ["pytorch"], "double_buffering": [True]})
    assert len(messages) == len(set(messages)) == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"repeat": 3}, "repeat = 3: unknown key; did you mean repeats?"),
        ({"silent": True}, "silent = true: unknown key; known keys: spec, parameters, configurations, repeats, seed, "),
        ({"silent": True}, "without_allreduce"),
        ({"limits": {"time": "1h"}}, "limits.trial"),
        ({"price": {"node_hour": 0.5}}, "price.source"),
        ({"repeats": 10_001}, "repeats = 10001: input should be less than or equal to 10000"),
        ({"compare": "nope"}, "published tables: chainercv-ssd300-p2"),
        ({"configurations": [{"colour": "red"}]}, "configurations.0.colour"),
    ],
)
def test_a_problem_outside_the_parameters_names_its_key(more: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems_of({"nodes": [1]}, **more))


def test_more_repeats_than_can_be_recorded_are_refused() -> None:
    """A slip such as 99999999 took all memory, without a word."""
    assert grid_study(JobSpec(), StudyOptions(repeats=10_000)).repeats == 10_000
    with pytest.raises(WrongStudy, match="repeats = 99999999: must be at most 10,000"):
        grid_study(JobSpec(), StudyOptions(repeats=99_999_999))


def test_configurations_of_one_name_are_refused_since_only_one_of_them_would_run() -> None:
    own = {"a": {"x, y": ["env.A=1"], "x": ["env.A=2"]}, "b": {"z": ["env.B=1"], "y, z": ["env.B=2"]}}
    assert problems_of(own) == ["parameters = 'x, y, z': two configurations have this name: rename a value"]


def test_a_users_own_program_has_neither_built_in_options_nor_trials_without_allreduce() -> None:
    assert "only the built-in programs have this option" in problems_of({"bucket_mb": [1]}, FOREIGN)[0]
    assert "only the built-in programs support it" in problems_of({"nodes": [1]}, FOREIGN, without_allreduce=True)[0]


def test_options_that_a_study_decides_itself_are_refused_and_the_others_win(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(tomli_w.dumps({"spec": GPU, "parameters": {"nodes": [1, 2]}, "repeats": 2}))
    with pytest.raises(InputError, match="defines its own parameters"):
        study_file.load(tmp_path / "study.toml", options=StudyOptions(nodes=[1]))
    study = study_file.load(tmp_path / "study.toml", ["env.A=1"], StudyOptions(repeats=7, seed=3))
    assert (study.repeats, study.seed, study.spec.env) == (7, 3, {"A": "1"})


def test_a_spec_is_no_study_and_a_study_needs_a_spec(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("[parameters]\nnodes = [1]\n")
    with pytest.raises(InputError, match="give the path of the job spec to vary"):
        studies.study_of(tmp_path / "study.toml", StudyOptions())
    assert not studies.study_of(JobSpec(command=["x"], launcher="none"), StudyOptions()).from_file
    (tmp_path / "study.toml").write_text(tomli_w.dumps({"spec": GPU, "repeats": 2}))
    with pytest.raises(InputError, match=r"^parameters: is required"):
        studies.study_of(tmp_path / "study.toml", StudyOptions())


def test_a_study_in_the_place_of_a_spec_is_called_one(tmp_path: Path) -> None:
    for name, more in (("own", {"spec": GPU}), ("its own", {"spec": "own.toml", "repeats": 2})):
        path = tmp_path / f"{name}.toml"
        path.write_text(tomli_w.dumps({"parameters": {"nodes": [1]}, **more}))
        with pytest.raises(InputError, match=r"is a study, not a job spec: `spotmpi bench .*` measures it") as refused:
            read_spec(path)
        assert len(refused.value.problems) == 1 and f"bench {shlex.quote(str(path))}`" in str(refused.value)
    with pytest.raises(InputError, match=r"own\.toml': is a study"):
        studies.study_of(tmp_path / "its own.toml", StudyOptions())


@pytest.mark.parametrize("path", sorted((names.SOURCE / "studies").glob("*.toml")), ids=lambda path: path.stem)
def test_every_ready_study_is_a_valid_one_that_can_have_intervals(path: Path) -> None:
    study = studies.study_of(path, StudyOptions())
    assert study.from_file and study.repeats >= 5
    assert "unknown" not in study.budget.estimate(study.trials())
    if path.stem.startswith("ssd300"):
        assert {nodes for _, nodes in study.configurations} == {2, 4, 8}
        assert len(study.variants) == 3  # base, placement group, and that with fp16
        kind = path.stem.split("-")[-1]
        stack = yaml.safe_load((names.PROJECT / "stacks" / f"Pulumi.{kind}.yaml").read_text())["config"]
        groups = [like(each) for each in stack["spotmpi:groups"]]
        chosen = [choose(variant.spec.model_copy(update={"nodes": 8}), groups) for variant in study.variants]
        assert [[group.name for group in each.groups] for each in chosen if isinstance(each, Choice)] == [
            [f"{kind}-spread"],
            [kind],
            [kind],
        ]


def like(message: dict[str, Any]) -> NodeGroup:
    """The node group that a stack's settings ask for, as its environment would export it."""
    kind = {"p3.2xlarge": "v100", "g5.xlarge": "a10g"}.get(message["type"], "l4")
    settings = {"placement_group": True, **message}
    return group(message["name"], model=kind, **{key: settings[key] for key in ("type", "max", "placement_group")})
