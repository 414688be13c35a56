"""A study from its file to its trials, limits and record."""

import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml

from jobs import bench, measure, names, study, sweep
from jobs.budget import Budget, Price
from jobs.cli.main import main
from jobs.design import Design, Factors
from jobs.environment import NodeGroup
from jobs.errors import InputError
from jobs.node_groups import Choice, choose
from jobs.report.gather import gather
from jobs.runs import RunState
from jobs.spec import JobSpec
from jobs.sweep import Sweep
from jobs.trial import DRIFT, MEASURED, SILENT, Trial
from tests.jobs.fake_runner import FakeRunner, quiet, states
from tests.jobs.recorded import NOW
from tests.jobs.test_node_groups import group

GPU = {"image": "chainermn", "program": "digits", "args": ["--global-batch", "64"], "resources": {"gpu": 1}}


def design_of(factors: dict[str, Any], spec: dict[str, Any] = GPU, **more: Any) -> Design:
    return study.design_of({"spec": spec, "factors": factors, **more})


def problems_of(factors: dict[str, Any], spec: dict[str, Any] = GPU, **more: Any) -> list[str]:
    with pytest.raises(InputError) as refused:
        design_of(factors, spec, **more)
    return [str(problem) for problem in refused.value.problems]


class Timed(FakeRunner):
    """Every run takes a minute of its own clock."""

    def state(self, run: str) -> RunState:
        values = vars(super().state(run))
        return RunState(**{**values, "submitted": 1000.0, "ended": 1060.0})


def opened(folder: Path, design: Design, name: str = "study-1") -> Sweep:
    return bench.open_sweep(design, bench.Recording(folder, name), False, quiet)


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


def test_levels_change_the_spec_as_the_programs_take_them() -> None:
    factors = {"framework": ["pytorch"], "global_batch": [128], "allreduce": ["fp16"], "loader_processes": [2]}
    (variant,) = design_of({**factors, "bucket_mb": [10]}, {**GPU, "args": ["--batch-per-worker=8"]}).variants
    assert variant.spec.image == "pytorch"
    args = " ".join(variant.spec.args)
    assert args == "--global-batch 128 --loader-processes 2 --ddp-hook fp16 --bucket-mb 10"
    chainermn = design_of({"allreduce": ["fp32", "fp16"], "double_buffering": [True]})
    assert [variant.spec.args[2:] for variant in chainermn.variants] == [
        ["--double-buffering"],
        ["--allreduce-dtype", "fp16", "--double-buffering"],
    ]


def test_the_type_that_a_model_computes_in_is_a_factor_and_fp32_needs_no_option() -> None:
    pytorch = {**GPU, "image": "pytorch"}
    full, half = design_of({"precision": ["fp32", "bf16"], "batch_per_worker": [16]}, pytorch).variants
    assert (full.name, half.name) == ("fp32 precision", "bf16 precision")
    assert full.spec.args == ["--batch-per-worker", "16"]
    assert half.spec.args == ["--batch-per-worker", "16", "--precision", "bf16"]
    (plain,) = design_of({"precision": ["fp32"]}).variants  # what ChainerMN does anyway
    assert plain.spec.args == GPU["args"]


@pytest.mark.parametrize(
    ("program", "factor", "told"),
    [
        ("allreduce", {"batch_per_worker": [8]}, "of our programs only digits, ssd, resnet50 have it, not allreduce"),
        ("allreduce", {"allreduce": ["fp16"]}, "only digits, ssd, resnet50 have it, not allreduce"),
        ("read", {"double_buffering": [True]}, "only digits, ssd, resnet50 have it, not read"),
        ("resnet50", {"data_cache": ["cold"]}, "of our programs only ssd has it, not resnet50"),
    ],
)
def test_a_program_that_lacks_an_option_refuses_its_factor_and_names_those_that_have_it(
    program: str, factor: dict[str, Any], told: str
) -> None:
    spec = {**GPU, "program": program, "args": [], "data": "voc"}
    assert any(told in problem for problem in problems_of(factor, spec))


def test_a_factor_of_ones_own_is_a_table_of_levels_with_settings() -> None:
    places = {"one zone": ["kubernetes.node_selector={a='1'}"], "placement group": ["env.X=1", "args+=--seed 3"]}
    one, two = design_of({"placement": places}).variants
    assert (one.name, two.name) == ("one zone", "placement group")
    assert one.spec.kubernetes.node_selector == {"a": "1"}
    assert (two.spec.env, two.spec.args[-2:]) == ({"X": "1"}, ["--seed", "3"])
    assert two.levels == (("placement", "placement group"),)
    assert one.keys == ("kubernetes", "machine")  # other nodes may be other machines, and that is no different work


def test_machines_and_places_of_data_are_factors_by_name() -> None:
    factors = {"placement_group": [False, True], "instance_type": ["g5.xlarge"], "data_location": ["shared", "memory"]}
    variants = design_of(factors, {**GPU, "data": "voc"}).variants
    assert [variant.name for variant in variants] == [
        "one zone, no group, data on shared storage",
        "one zone, no group, data in memory",
        "placement group, data on shared storage",
        "placement group, data in memory",
    ]
    last = variants[-1]
    assert (last.spec.kubernetes.placement_group, last.spec.kubernetes.instance_type) == (True, "g5.xlarge")
    assert last.spec.data is not None
    assert (last.spec.data.path, last.spec.data.stage) == ("voc", "memory")
    assert "kubernetes.placement_group=True" in last.settings
    assert "machine" in last.keys  # another machine is what was asked for


SSD = {"image": "chainermn", "program": "ssd", "args": ["--global-batch", "32"], "data": "voc"}


def test_data_may_be_drawn_cold_or_warm() -> None:
    real, drawn = design_of({"data": ["real", "synthetic"]}, SSD).variants
    assert (real.name, drawn.name) == ("real data", "synthetic data")
    assert drawn.spec.args[-1] == "--synthetic"
    assert drawn.spec.data is None
    assert {"args", "data"} <= set(drawn.keys)  # other data is what was asked for
    cold, warm = design_of({"data_cache": ["cold", "warm"]}, SSD).variants
    assert cold.spec.args[-2:] == ["--data-cache", "cold"]
    assert warm.spec.args[-2:] == ["--data-cache", "warm"]


@pytest.mark.parametrize(
    ("factors", "told"),
    [
        (
            {"data": ["synthetic"], "data_location": ["node"]},
            "contradicts data = 'synthetic'; drawn images lie nowhere",
        ),
        ({"data_cache": ["cold"], "data_location": ["memory"]}, "what lies in memory is never cold"),
        ({"data": ["drawn"]}, "factors.data = 'drawn': levels are: real, synthetic"),
    ],
)
def test_data_that_cannot_be_so_is_refused(factors: dict[str, Any], told: str) -> None:
    assert any(told in problem for problem in problems_of(factors, SSD))


def test_programs_without_such_data_refuse_its_factors() -> None:
    digits = {**SSD, "program": "digits"}
    assert any(
        "of our programs only ssd has it, not digits" in problem for problem in problems_of({"data": ["real"]}, digits)
    )


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


@pytest.mark.parametrize(
    ("factors", "told"),
    [
        (
            {"global_batch": [64], "batch_per_worker": [8]},
            "factors.global_batch = 64: contradicts batch_per_worker = 8",
        ),
        (
            {"framework": ["pytorch"], "double_buffering": [True]},
            "factors.double_buffering = True: only ChainerMN has it",
        ),
        ({"bucket_mb": [10]}, "factors.bucket_mb = 10: only PyTorch has it"),
        ({"precision": ["bf16"]}, "factors.precision = 'bf16': levels with ChainerMN are: fp32"),
        ({"allreduce": ["bf16"]}, "factors.allreduce = 'bf16': levels with ChainerMN are: fp32, fp16"),
        (
            {"framework": ["pytorch"], "precision": ["fp16"]},
            "factors.precision = 'fp16': levels with PyTorch are: fp32, bf16",
        ),
        ({"communicator": ["mpi"]}, "levels with ChainerMN are: pure_nccl, flat, non_cuda_aware, naive"),
        ({"global_batch": [0]}, "factors.global_batch = 0: give numbers above 0"),
        ({"loader_processes": [-1]}, "factors.loader_processes = -1: give numbers above -1"),
        ({"communicator": ["naive"], "allreduce": ["fp16"]}, "contradicts communicator naive"),
        ({"nodes": [1, 3]}, "factors.nodes = 3: a global batch of 64 cannot be divided by 3 ranks"),
        ({"nodes": [0]}, "factors.nodes = 0: give counts from 1"),
        ({"slots": [True]}, "factors.slots = True: give int"),
        ({"slots": []}, "give at least one level, and each once"),
        ({"slots": [1, 1]}, "give at least one level, and each once"),
        ({"colour": ["red"]}, "not known: nodes, framework, slots"),
        ({"slots": {"a": ["slots=1"]}}, "has levels of its own: give a list"),
        ({"mine": {"a": ["slot=2"]}}, "factors.mine.a = 'slot=2'"),
        (
            {"node_group": ["g5"], "placement_group": [True]},
            "factors.placement_group = True: contradicts node_group = 'g5'; the group says it already",
        ),
        ({"instance_type": ["t3.large"], "placement_group": [True]}, "T instances can be in none"),
        ({"placement_group": ["on"]}, "factors.placement_group = 'on': give bool"),
        ({"data_location": ["attic"]}, "factors.data_location = 'attic': levels are: shared, node, memory"),
        ({"data_location": ["memory"]}, "factors.data_location = 'memory': the spec names no data"),
    ],
)
def test_factors_that_contradict_each_other_or_say_nothing_are_refused_in_clear_words(
    factors: dict[str, Any], told: str
) -> None:
    assert any(told in problem for problem in problems_of(factors))


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


def test_the_estimate_says_what_is_not_known_and_what_will_be_cut_off() -> None:
    trials = [Trial(number, "base", 2, number) for number in range(1, 11)]
    assert "is not known" in Budget().estimate(trials)
    price = Price(3.6, "us-east-1 spot, 2026-11-21")
    assert Budget(trial=30, price=price).estimate(trials) == "10 trials, about 5 min and $0.60"
    tight = Budget(120, 0.1, 30, price).estimate(trials)
    assert tight.endswith("more than limits.time = '2m' and limits.money = 0.1, where it will be cut off")


def test_a_study_is_cut_off_by_its_money_limit_and_goes_on_with_a_higher_one(tmp_path: Path) -> None:
    def limited(money: float) -> Design:
        price = {"node_hour": 60.0, "told": "a dollar a minute"}
        return design_of({"nodes": [1]}, repeats=5, price=price, limits={"money": money, "trial": "60s"})

    it, said = opened(tmp_path, limited(2.5)), list[str]()
    bench.carry_out(it, Timed(), said.append)
    assert said[0].startswith("estimate: 5 trials, about 5 min and $5.00: more than limits.money = 2.5")
    assert states(it) == ["succeeded"] * 2 + ["pending"] * 3
    kept = sweep.load(it.folder)
    assert kept.cut == "limits.money = 2.5 is reached: $2.00 spent, the next trial costs $1.00"
    again = opened(tmp_path, limited(10.0), "another")
    assert again.id == it.id
    bench.carry_out(again, Timed(), quiet)
    assert states(again) == ["succeeded"] * 5
    assert sweep.load(it.folder).cut is None


def test_a_time_limit_counts_failed_tries_too(tmp_path: Path) -> None:
    limits = {"time": "3m", "trial": "60s"}
    it = opened(tmp_path, design_of({"nodes": [1]}, repeats=3, limits=limits))
    bench.carry_out(it, Timed({1: ["failed"], 2: ["failed"]}), quiet)
    assert states(it) == ["succeeded", "pending", "pending"]


def test_a_trial_that_fails_three_times_is_reported_and_the_study_goes_on(tmp_path: Path) -> None:
    it, said = opened(tmp_path, design_of({"nodes": [1, 2]}, repeats=1)), list[str]()
    bench.carry_out(it, Timed({1: ["failed"], 2: ["failed"], 3: ["failed"]}), said.append)
    assert states(it) == ["failed", "succeeded"]
    assert [line for line in said if "failed (try" in line][-1].startswith("trial 1 failed (try 3 of 3): it failed")


def test_a_study_reads_back_from_its_record_and_from_the_file_beside_it(tmp_path: Path) -> None:
    design = design_of(
        {"nodes": [1, 2], "mine": {"a": ["env.X=1"], "b": ["slots=2"]}},
        repeats=2,
        drift=True,
        limits={"time": "1h", "trial": "1m"},
        price={"node_hour": 0.5, "told": "list price"},
    )
    it = opened(tmp_path, design)
    assert sweep.load(it.folder) == it
    again = study.load(it.folder / "study.toml")
    assert (again, again.budget) == (design, design.budget)
    assert it.command == f"spotmpi bench {it.folder}/study.toml"


def test_options_that_a_study_decides_itself_are_refused_and_the_others_win(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(tomli_w.dumps({"spec": GPU, "factors": {"nodes": [1, 2]}, "repeats": 2}))
    with pytest.raises(InputError, match="says itself what it varies"):
        study.load(tmp_path / "study.toml", given=Factors(nodes=[1]))
    given = study.load(tmp_path / "study.toml", ["env.A=1"], Factors(repeats=7, seed=3))
    assert (given.repeats, given.seed, given.spec.env) == (7, 3, {"A": "1"})


TRAIN = """
import json, sys, time
print(json.dumps({"spotmpi": "context", "samples_per_iteration": 8, "total_iterations": 60}), flush=True)
for last in range(10, 61, 10):
    time.sleep(0.01)
    seconds = [float(sys.argv[1])] * 10
    print(json.dumps({"spotmpi": "metric", "iteration": last, "seconds": seconds, "loss": 1 / last}), flush=True)
    if "--fail" in sys.argv:
        sys.exit("a bad batch")
"""


def test_a_study_of_a_plain_command_runs_here_and_ends_in_a_report(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {
        "spec": {
            "name": "tiny",
            "command": [sys.executable, "-c", TRAIN],
            "launcher": "none",
            "where": "first",
            "limits": {"failures": 0},
        },
        "factors": {"speed": {"slow": ["args+=0.02"], "fast": ["args+=0.01"], "bad": ["args+=0.01 --fail"]}},
        "repeats": 2,
        "drift": True,
        "limits": {"time": "10m", "trial": "2s"},
    }
    Path("study.toml").write_text(tomli_w.dumps(values))
    monkeypatch.setattr(sys, "argv", ["spotmpi", "bench", "study.toml", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    told, said = capsys.readouterr()
    assert ended.value.code == 1  # the bad level is missing, and the study went on without it
    assert "estimate: 8 trials, about 16 s" in said
    rates = {row["variant"]: row["iterations_per_second"] for row in json.loads(told)["rows"]}
    assert rates == {"slow": pytest.approx(50.0), "fast": pytest.approx(100.0)}
    report = gather([], runs, NOW)
    assert sum("failed 3 times and is missing" in warning for warning in report.warnings) == 2
    assert report.commands[0].startswith("spotmpi bench runs/sweeps/tiny-")


def test_a_spec_is_no_study_and_a_study_needs_a_spec(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("[factors]\nnodes = [1]\n")
    with pytest.raises(InputError, match="name the job spec that the study varies"):
        measure.design_of(tmp_path / "study.toml", Factors())
    assert not measure.design_of(JobSpec(command=["x"], launcher="none"), Factors()).is_study


@pytest.mark.parametrize(
    "path", sorted((names.PROJECT / "jobs" / "studies").glob("*.toml")), ids=lambda path: path.stem
)
def test_every_ready_study_is_a_valid_one_that_can_have_intervals(path: Path) -> None:
    design = measure.design_of(path, Factors())
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
