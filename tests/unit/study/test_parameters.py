"""The parameters of a study: what their values make of the spec, and which contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.spec.job import Data
from tests.unit.study.studies import GPU, problems_of, study_of


def test_values_change_the_spec_as_the_programs_take_them() -> None:
    parameters = {"framework": ["pytorch"], "global_batch": [128], "allreduce": ["fp16"], "loader_processes": [2]}
    (variant,) = study_of({**parameters, "bucket_mb": [10]}, {**GPU, "args": ["--batch-per-worker=8"]}).variants
    assert variant.spec.image == "pytorch"
    args = " ".join(variant.spec.args)
    assert args == "--global-batch 128 --loader-processes 2 --ddp-hook fp16 --bucket-mb 10"
    chainermn = study_of({"allreduce": ["fp32", "fp16"], "double_buffering": [True]})
    fp32, fp16 = (variant.spec.args[2:] for variant in chainermn.variants)
    assert (fp32, fp16) == (["--double-buffering"], ["--allreduce-dtype", "fp16", "--double-buffering"])


def test_the_type_that_a_model_computes_in_is_a_parameter_and_fp32_needs_no_option() -> None:
    pytorch = {**GPU, "image": "pytorch"}
    full, half = study_of({"precision": ["fp32", "bf16"], "batch_per_worker": [16]}, pytorch).variants
    assert (full.name, half.name) == ("fp32 precision", "bf16 precision")
    assert full.spec.args == ["--batch-per-worker", "16"]
    assert half.spec.args == ["--batch-per-worker", "16", "--precision", "bf16"]
    (plain,) = study_of({"precision": ["fp32"]}).variants  # what ChainerMN does anyway
    assert plain.spec.args == GPU["args"]


@pytest.mark.parametrize(
    ("program", "parameter", "programs"),
    [
        ("allreduce", {"batch_per_worker": [8]}, "digits, ssd, resnet50"),
        ("allreduce", {"allreduce": ["fp16"]}, "digits"),
        ("read", {"double_buffering": [True]}, "digits"),
        ("resnet50", {"data_cache": ["cold"]}, "ssd"),
    ],
)
def test_a_program_that_lacks_an_option_refuses_its_parameter_and_names_those_that_have_it(
    program: str, parameter: dict[str, Any], programs: str
) -> None:
    spec = {**GPU, "program": program, "args": [], "data": "voc"}
    message = f"not supported by program {program}; supported by {programs}"
    assert any(message in problem for problem in problems_of(parameter, spec))


def test_a_users_own_parameter_is_a_table_of_values_with_settings() -> None:
    places = {"one zone": ["kubernetes.node_selector={a='1'}"], "placement group": ["env.X=1", "args+=--seed 3"]}
    one, two = study_of({"placement": places}).variants
    assert (one.name, two.name) == ("one zone", "placement group")
    assert one.spec.kubernetes.node_selector == {"a": "1"}
    assert (two.spec.env, two.spec.args[-2:]) == ({"X": "1"}, ["--seed", "3"])
    assert two.values == (("placement", "placement group"),)
    assert one.keys == ("kubernetes", "machine")  # other nodes may be other machines, and that is not different work


def test_workers_and_prefetch_of_a_stream_are_parameters() -> None:
    own = {"command": ["train"], "program": None, "image": None, "args": []}
    spec = {**GPU, **own, "stream": {"source": "s3://set", "batch": 8, "workers": {"cpu": 2}}}
    parameters = {
        "stream": {"workers": {"count": [2, 4]}, "prefetch": [8, 16]}
    }  # as TOML reads stream.prefetch = [8, 16]
    variants = study_of(parameters, spec).variants
    assert [variant.name for variant in variants] == [
        f"prefetch {prefetch}, stream workers {workers}" for prefetch in (8, 16) for workers in (2, 4)
    ]
    streams = [variant.spec.stream for variant in variants if variant.spec.stream]
    assert [(stream.workers.count, stream.prefetch) for stream in streams] == [(2, 8), (4, 8), (2, 16), (4, 16)]
    assert {stream.workers.cpu for stream in streams} == {2}
    assert variants[3].settings == ("stream.workers.count=4", "stream.prefetch=16")
    assert any("the spec has no table [stream]" in each for each in problems_of({"stream.prefetch": [4]}, GPU))


def test_machines_and_places_of_data_are_parameters_by_name() -> None:
    parameters = {
        "placement_group": [False, True],
        "instance_type": ["g5.xlarge"],
        "data_location": ["shared", "memory"],
    }
    variants = study_of(parameters, {**GPU, "data": "voc"}).variants
    assert [variant.name for variant in variants] == [
        "one zone, no group, data on shared storage",
        "one zone, no group, data in memory",
        "placement group, data on shared storage",
        "placement group, data in memory",
    ]
    last = variants[-1]
    assert (last.spec.kubernetes.placement_group, last.spec.kubernetes.instance_type) == (True, "g5.xlarge")
    assert last.spec.data == Data(path="voc", stage="memory")
    assert "kubernetes.placement_group=true" in last.settings
    assert "machine" in last.keys  # another machine is what was asked for


SSD = {"image": "chainermn", "program": "ssd", "args": ["--global-batch", "32"], "data": "voc"}


def test_data_may_be_synthetic_cold_or_warm() -> None:
    real, drawn = study_of({"data": ["real", "synthetic"]}, SSD).variants
    assert (real.name, drawn.name) == ("real data", "synthetic data")
    assert drawn.spec.args[-1] == "--synthetic"
    assert drawn.spec.data is None
    assert {"args", "data"} <= set(drawn.keys)  # other data is what was asked for
    cold, warm = study_of({"data_cache": ["cold", "warm"]}, SSD).variants
    assert cold.spec.args[-2:] == ["--data-cache", "cold"]
    assert warm.spec.args[-2:] == ["--data-cache", "warm"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"data": ["synthetic"], "data_location": ["node"]}, "conflicts with data = 'synthetic': synthetic images"),
        ({"data_cache": ["cold"], "data_location": ["memory"]}, "data in memory is never cold"),
        ({"data": ["drawn"]}, "parameters.data = 'drawn': known values: real, synthetic"),
    ],
)
def test_impossible_data_is_refused(parameters: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems_of(parameters, SSD))


def test_programs_without_such_data_refuse_its_parameters() -> None:
    digits = {**SSD, "program": "digits"}
    assert any(
        "not supported by program digits; supported by ssd" in problem
        for problem in problems_of({"data": ["real"]}, digits)
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"global_batch": [64], "batch_per_worker": [8]},
            "parameters.global_batch = 64: conflicts with batch_per_worker = 8",
        ),
        (
            {"framework": ["pytorch"], "double_buffering": [True]},
            "parameters.double_buffering = true: supported only by ChainerMN",
        ),
        ({"bucket_mb": [10]}, "parameters.bucket_mb = 10: supported only by PyTorch"),
        ({"precision": ["bf16"]}, "parameters.precision = 'bf16': not supported by ChainerMN; known values: fp32"),
        (
            {"allreduce": ["bf16"]},
            "parameters.allreduce = 'bf16': not supported by ChainerMN; known values: fp32, fp16",
        ),
        (
            {"framework": ["pytorch"], "precision": ["fp16"]},
            "parameters.precision = 'fp16': not supported by PyTorch; known values: fp32, bf16",
        ),
        ({"communicator": ["mpi"]}, "not supported by ChainerMN; known values: pure_nccl, flat, non_cuda_aware, naive"),
        ({"global_batch": [0]}, "parameters.global_batch = 0: must be above 0"),
        ({"bucket_mb": [float("nan")]}, "parameters.bucket_mb = nan: must be above 0"),
        ({"bucket_mb": [float("inf")]}, "parameters.bucket_mb = inf: must be above 0"),
        ({"loader_processes": [-1]}, "parameters.loader_processes = -1: must be above -1"),
        ({"communicator": ["naive"], "allreduce": ["fp16"]}, "not supported by communicator naive"),
        ({"nodes": [1, 3]}, "parameters.nodes = 3: global batch 64 is not divisible by 3 ranks"),
        ({"nodes": [0]}, "parameters.nodes = 0: must be a whole number of at least 1"),
        ({"slots": [True]}, "parameters.slots = true: must be a whole number"),
        ({"slots": []}, "needs at least one value, each only once"),
        ({"slots": [1, 1]}, "needs at least one value, each only once"),
        ({"colour": ["red"]}, "unknown parameter; known: nodes, framework, slots"),
        ({"slots": {"a": ["slots=1"]}}, "built-in parameter: give a list of values"),
        ({"mine": {"a": ["slot=2"]}}, "parameters.mine.a = 'slot=2'"),
        (
            {"node_group": ["g5"], "placement_group": [True]},
            "parameters.placement_group = true: conflicts with node_group = 'g5': the node group determines it",
        ),
        ({"instance_type": ["t3.large"], "placement_group": [True]}, "T instances do not support placement groups"),
        ({"placement_group": ["on"]}, "parameters.placement_group = 'on': must be true or false"),
        ({"data_location": ["attic"]}, "parameters.data_location = 'attic': known values: shared, node, memory"),
        ({"data_location": ["memory"]}, "parameters.data_location = 'memory': the spec has no data"),
    ],
)
def test_conflicting_or_meaningless_parameters_are_refused_with_the_reason(
    parameters: dict[str, Any], message: str
) -> None:
    assert any(message in problem for problem in problems_of(parameters))


@pytest.mark.parametrize("batch", ["\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}", "-2", "2.5", ""])
def test_a_batch_that_is_no_number_is_left_to_the_program(batch: str) -> None:
    """Python calls a superscript a digit, and does not read it as a number."""
    assert study_of({"nodes": [2]}, {**GPU, "args": ["--global-batch", batch]}).nodes == (2,)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_price_or_limit_that_is_no_amount_is_refused(value: float) -> None:
    price, limits = {"node_hour": value, "source": "list"}, {"money": value, "trial": "1m"}
    problems = [problem.partition(": ")[0] for problem in problems_of({"nodes": [1]}, price=price, limits=limits)]
    assert sorted(problems) == [f"limits.money = {value}", f"price.node_hour = {value}"]
