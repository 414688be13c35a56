"""The factors of a study: what their levels make of the spec, and which contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.study.study_designs import GPU, design_of, problems_of


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
