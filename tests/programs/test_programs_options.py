"""Options have one meaning, wrong ones end the run for good, and the agent's environment gives the defaults."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.network import interface_towards
from spotmpi.programs.bandwidth import bandwidth_parser, bandwidths, sizes
from spotmpi.programs.exits import Fatal
from spotmpi.programs.options import TrainingOptions, data_option, describe_options, training_parser
from spotmpi.programs.world import World, alone, check_world

ENOUGH = ["--global-batch", "32", "--epochs", "1"]


def test_the_environment_of_a_rank_gives_the_defaults() -> None:
    environ = {
        protocol.ENV_CHECKPOINT_PATH: "/run/checkpoints",
        protocol.ENV_CHECKPOINT_EVERY: "90.5",
        protocol.ENV_CHECKPOINT_KEEP: "5",
        protocol.ENV_DATA: "/data/VOC",
    }
    parser = training_parser("", environ)
    data_option(parser, environ)

    parsed = parser.parse_args(ENOUGH)
    options = TrainingOptions.of(parsed)

    assert options.checkpoint_path == Path("/run/checkpoints")
    assert (options.checkpoint_every, options.checkpoint_keep) == (90.5, 5)
    assert parsed.data == Path("/data/VOC")
    assert TrainingOptions.of(parser.parse_args([*ENOUGH, "--checkpoint-keep", "1"])).checkpoint_keep == 1


def test_without_an_agent_checkpoints_need_an_option() -> None:
    options = TrainingOptions.of(training_parser("", {}).parse_args(ENOUGH))

    assert options.checkpoint_path is None
    assert (options.checkpoint_every, options.checkpoint_keep) == (600, 3)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--epochs", "1"], "one of the arguments --global-batch --batch-per-worker is required"),
        ([*ENOUGH, "--batch-per-worker", "4"], "not allowed with argument --global-batch"),
        ([*ENOUGH, "--iterations", "4"], "not allowed with argument --epochs"),
        (["--global-batch", "0", "--epochs", "1"], "'0' is not a whole number of at least 1"),
        (["--global-batch", "many", "--epochs", "1"], "'many' is not a whole number of at least 1"),
        ([*ENOUGH, "--loader-processes", "-1"], "'-1' is not a whole number of at least 0"),
        (["--global-batch", "1", "--epochs", "nan"], "'nan' is not a number above 0"),
        (["--global-batch", "1", "--epochs", "inf"], "'inf' is not a number above 0"),
        ([*ENOUGH, "--checkpoint-every", "0"], "'0' is not a number above 0"),
        ([*ENOUGH, "--colour", "red"], "unrecognized arguments: --colour red"),
    ],
)
def test_wrong_options_are_fatal_and_named(arguments: list[str], reason: str) -> None:
    with pytest.raises(Fatal) as refused:
        training_parser("", {}).parse_args(arguments)

    assert reason in str(refused.value)


def test_a_wrong_default_from_the_environment_is_refused_as_well() -> None:
    with pytest.raises(Fatal, match="'soon' is not a number above 0"):
        training_parser("", {protocol.ENV_CHECKPOINT_EVERY: "soon"}).parse_args(ENOUGH)


def test_a_program_that_reads_data_requires_its_path() -> None:
    parser = training_parser("", {})
    data_option(parser, {})

    with pytest.raises(Fatal, match="required: --data"):
        parser.parse_args(ENOUGH)


def test_paths_are_no_part_of_the_work() -> None:
    parsed = training_parser("", {}).parse_args([*ENOUGH, "--checkpoint-path", "/somewhere"])

    work = describe_options(parsed, "numpy", {"numpy": "1"})

    assert work["options"] == {name: value for name, value in vars(parsed).items() if name != "checkpoint_path"}
    assert (work["framework"], work["versions"]) == ("numpy", {"numpy": "1"})


@pytest.mark.parametrize(
    ("ranks", "hosts", "problem"),
    [
        (4, ("a", "b"), None),
        (1, ("a", "b"), "wrong number of ranks: 1, expected 4"),
        (4, ("a",), r"wrong number of hosts \(a\): 1, expected 2"),
    ],
)
def test_ranks_that_did_not_find_each_other_or_crowd_on_fewer_hosts_are_fatal(
    ranks: int, hosts: tuple[str, ...], problem: str | None
) -> None:
    world = World(0, ranks, 0, hosts, lambda value: value, lambda value: [value] * ranks)
    with pytest.raises(Fatal, match=problem) if problem else contextlib.nullcontext():
        check_world(world, {protocol.ENV_WORLD_SIZE: "4", protocol.ENV_HOSTS: "2"})


def test_any_world_passes_where_none_is_requested() -> None:
    check_world(alone(), {})


def test_scalars_are_averaged_over_ranks_and_seconds_kept_apart_in_one_gather() -> None:
    gathered = []

    def gather(value: Any) -> list[Any]:
        gathered.append(value)
        return [value, ([3.0, 0.5], [0.3, 0.4])]

    two = World(0, 2, 0, ("a",), lambda value: value, gather)

    assert two.average_scalars({"loss": 1.0, "accuracy": 1.0}, [0.1, 0.2]) == (
        {"loss": 2.0, "accuracy": 0.75},
        [[0.1, 0.2], [0.3, 0.4]],
    )
    assert len(gathered) == 1
    assert alone().average_scalars({"loss": 1.0}, [0.1]) == ({"loss": 1.0}, [[0.1]])


def test_message_sizes_are_whole_items_each_a_factor_larger() -> None:
    assert list(sizes(1024, 70_000, 4)) == [1024, 4096, 16384, 65536]
    assert list(sizes(6, 20, 2)) == [4, 8, 16]
    with pytest.raises(Fatal, match="--max-bytes 1024 is smaller than the first message"):
        list(sizes(4096, 1024, 4))


def test_bus_bandwidth_follows_the_definition_of_nccl_tests() -> None:
    measured = bandwidths(8_000_000, 4, [0.002, 0.001, 0.004])

    assert measured["median_seconds"] == 0.002
    assert measured["algbw"] == pytest.approx(4.0)
    assert measured["busbw"] == pytest.approx(4.0 * 2 * 3 / 4)
    assert bandwidths(8, 1, [1.0])["busbw"] == 0


def test_a_factor_below_two_is_refused() -> None:
    with pytest.raises(Fatal, match="'1' is not a whole number of at least 2"):
        bandwidth_parser("").parse_args(["--factor", "1"])


def test_the_interface_is_chosen_by_the_route_to_the_peer() -> None:
    assert interface_towards("127.0.0.1") == "lo"
    with pytest.raises(OSError):
        interface_towards("no-such-host.invalid")
    with contextlib.suppress(OSError):  # without a route
        assert interface_towards("203.0.113.7") != "lo"
