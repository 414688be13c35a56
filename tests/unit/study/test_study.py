"""A study from its file to its trials: which there are, in which order, with whom beside them."""

import itertools
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
from spotmpi.study import study_file
from spotmpi.study.design import Factors
from spotmpi.study.trial import DRIFT, MEASURED, SILENT
from tests.unit.spec.test_node_groups import group
from tests.unit.study.study_designs import GPU, design_of, problems_of


def test_the_full_combination_of_factors_is_measured_each_repeat_in_an_order_of_its_own() -> None:
    design = design_of({"nodes": [1, 2], "slots": [1, 2], "double_buffering": [False, True]}, repeats=2)
    assert [variant.name for variant in design.variants] == [
        "slots 1, no double buffering",
        "slots 1, double buffering",
        "slots 2, no double buffering",
        "slots 2, double buffering",
    ]
    counted = Counter((trial.variant, trial.nodes) for trial in design.trials())
    assert set(counted.values()) == {2} and len(counted) == 8
    first, second = ([(t.variant, t.nodes) for t in design.trials() if t.repeat == repeat] for repeat in (1, 2))
    assert sorted(first) == sorted(second) and first != second


def test_listed_combinations_take_what_they_do_not_name_from_the_factors() -> None:
    listed = [{"double_buffering": False}, {"nodes": [2, 4], "double_buffering": True, "allreduce": "fp16"}]
    design = design_of({"nodes": [1, 2], "allreduce": ["fp32"]}, combinations=listed)
    assert design.cells == (
        ("fp32 allreduce, no double buffering", 1),
        ("fp32 allreduce, no double buffering", 2),
        ("fp16 allreduce, double buffering", 2),
        ("fp16 allreduce, double buffering", 4),
    )


def test_trials_on_one_kind_of_node_stay_together() -> None:
    kinds = {kind: [f"kubernetes.node_selector={{kind='{kind}'}}"] for kind in ("a", "b", "c")}
    order = [trial.variant for trial in design_of({"kind": kinds, "nodes": [1, 2]}, repeats=4).trials()]
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert changes == 4 * 2  # two within each repeat, and none from one repeat to the next
    beside = design_of({"kind": kinds, "nodes": [1, 2]}, repeats=4, probe=True, drift=True).trials()[:-1]
    changes = sum(one.variant != other.variant for one, other in itertools.pairwise(beside))
    assert changes == 2 + 4 * 2  # two among the micro-benchmarks, and none from there to the drift and the repeats


def test_silent_partners_run_beside_their_trials_and_drift_before_and_after_all() -> None:
    trials = design_of({"nodes": [4, 2]}, repeats=2, silent=True, drift=True).trials()
    assert [(trial.role, trial.nodes) for trial in (trials[0], trials[-1])] == [(DRIFT, 2)] * 2
    inner = trials[1:-1]
    for one, other in zip(inner[::2], inner[1::2], strict=True):
        assert {one.role, other.role} == {MEASURED, SILENT}
        assert (one.nodes, one.repeat) == (other.nodes, other.repeat)
    assert len({trial.role for trial in inner[::2]}) == 2  # neither always comes first


def test_a_single_rank_has_nobody_to_be_silent_towards() -> None:
    trials = design_of({"nodes": [1], "slots": [1, 2]}, repeats=1, silent=True).trials()
    assert sorted((trial.variant, trial.role) for trial in trials) == [
        ("slots 1", MEASURED),
        ("slots 2", MEASURED),
        ("slots 2", SILENT),
    ]


def test_micro_benchmarks_run_first_on_each_kind_of_node_with_the_data_of_the_study() -> None:
    spec = {**GPU, "data": "voc"}
    kinds = {"a": ["kubernetes.node_selector={k='a'}"], "b": ["kubernetes.node_selector={k='b'}"]}
    design = design_of({"nodes": [1, 2, 4], "kind": kinds}, spec, repeats=1, probe=True, drift=True)
    first = design.trials()[:5]
    assert sorted((trial.role, trial.variant, trial.nodes) for trial in first[:4]) == [
        (role, kind, 4) for role in ("allreduce", "read") for kind in ("a", "b")
    ]
    assert first[4].role == DRIFT
    made = design.spec_of(first[0])
    assert (made.program, made.args, made.image) == (first[0].role, [], "chainermn")
    assert made.data == design.spec.data
    alone = design_of({"nodes": [1]}, repeats=1, probe=True).trials()
    assert [trial.role for trial in alone] == [MEASURED]  # one rank, no data: there is nothing to probe
    assert "one of the images" in problems_of({"nodes": [1]}, {"command": ["x"], "launcher": "none"}, probe=True)[0]


def test_a_silent_trial_is_told_to_leave_the_exchange_out() -> None:
    design = design_of({"nodes": [2]}, repeats=1, silent=True)
    args = {trial.role: design.spec_of(trial).args for trial in design.trials()}
    assert args[SILENT] == [*args[MEASURED], "--no-exchange"]


def test_all_problems_come_at_once_and_each_only_once() -> None:
    found = problems_of({"nodes": [1, 3, 5], "framework": ["pytorch"], "double_buffering": [True]})
    assert len(found) == len(set(found)) == 3


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"repeat": 3}, "repeat = 3: unknown key; did you mean repeats?"),
        ({"limits": {"time": "1h"}}, "limits.trial"),
        ({"price": {"node_hour": 0.5}}, "price.told"),
        ({"compare": "nope"}, "published tables are: chainercv-ssd300-p2"),
        ({"combinations": [{"colour": "red"}]}, "combinations.0.colour"),
    ],
)
def test_what_is_wrong_beside_the_factors_is_told_with_its_key(more: dict[str, Any], told: str) -> None:
    assert any(told in problem for problem in problems_of({"nodes": [1]}, **more))


def test_a_program_of_ones_own_has_neither_our_options_nor_silent_partners() -> None:
    foreign = {"command": ["train"], "launcher": "none"}
    assert "only our programs have this option" in problems_of({"bucket_mb": [1]}, foreign)[0]
    assert "only our programs can leave out" in problems_of({"nodes": [1]}, foreign, silent=True)[0]


def test_options_that_a_study_decides_itself_are_refused_and_the_others_win(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(tomli_w.dumps({"spec": GPU, "factors": {"nodes": [1, 2]}, "repeats": 2}))
    with pytest.raises(InputError, match="says itself what it varies"):
        study_file.load(tmp_path / "study.toml", given=Factors(nodes=[1]))
    given = study_file.load(tmp_path / "study.toml", ["env.A=1"], Factors(repeats=7, seed=3))
    assert (given.repeats, given.seed, given.spec.env) == (7, 3, {"A": "1"})


def test_a_spec_is_no_study_and_a_study_needs_a_spec(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("[factors]\nnodes = [1]\n")
    with pytest.raises(InputError, match="name the job spec that the study varies"):
        studies.design_of(tmp_path / "study.toml", Factors())
    assert not studies.design_of(JobSpec(command=["x"], launcher="none"), Factors()).is_study


@pytest.mark.parametrize("path", sorted((names.SOURCE / "studies").glob("*.toml")), ids=lambda path: path.stem)
def test_every_ready_study_is_a_valid_one_that_can_have_intervals(path: Path) -> None:
    design = studies.design_of(path, Factors())
    assert design.is_study and design.repeats >= 5
    assert "is not known" not in design.budget.estimate(design.trials())
    if path.stem.startswith("ssd300"):
        assert {nodes for _, nodes in design.cells} == {2, 4, 8}
        assert len(design.variants) == 3  # base, placement group, and that with fp16
        kind = path.stem.split("-")[-1]
        stack = yaml.safe_load((names.PROJECT / "stacks" / f"Pulumi.{kind}.yaml").read_text())["config"]
        groups = [like(each) for each in stack["spotmpi:groups"]]
        chosen = [choose(variant.spec.model_copy(update={"nodes": 8}), groups) for variant in design.variants]
        assert [[group.name for group in each.groups] for each in chosen if isinstance(each, Choice)] == [
            [f"{kind}-spread"],
            [kind],
            [kind],
        ]


def like(told: dict[str, Any]) -> NodeGroup:
    """The node group that a stack's settings ask for, as its environment would export it."""
    kind = {"p3.2xlarge": "v100", "g5.xlarge": "a10g"}.get(told["type"], "l4")
    settings = {"placement_group": True, **told}
    return group(told["name"], model=kind, **{key: settings[key] for key in ("type", "max", "placement_group")})
