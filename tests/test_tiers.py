"""`./scripts/test`: which tiers it runs for which words, and how the nightly ones are shared out."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import run_tests, tiers


def chosen_tiers(monkeypatch: pytest.MonkeyPatch, *words: str, ci: str = "") -> list[tiers.Tier]:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr("sys.argv", ["scripts/test", *words])
    chosen: list[tiers.Tier] = tiers.read_command_line().chosen
    return chosen


def selected_by(chosen: list[tiers.Tier]) -> dict[str, str]:
    """The marker expression of each tier that has one."""
    commands = {tier.name: tier.commands[-1] for tier in chosen}
    return {name: command[command.index("-m", 3) + 1] for name, command in commands.items() if "-m" in command[3:]}


def test_the_default_needs_neither_root_nor_debian_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = chosen_tiers(monkeypatch)
    assert [tier.name for tier in chosen] == ["static", "unit", "images", "engine"]
    assert {tier.missing for tier in chosen} == {tiers.nothing_missing, tiers.pulumi}


def test_ci_runs_a_representative_of_everything_unless_nightly_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_tiers(monkeypatch, ci="true") == chosen_tiers(monkeypatch, "--all") == tiers.ALL
    assert chosen_tiers(monkeypatch, "--nightly", ci="true") == tiers.NIGHTLY


def test_ci_runs_everything_of_all_once_the_default_as_a_newcomer_and_then_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest = chosen_tiers(monkeypatch, "--rest", ci="true")
    assert [tier.name for tier in rest] == ["types", "unit", "images", "engine", "browser", "slurm", "cluster"]
    default = chosen_tiers(monkeypatch)
    assert selected_by(rest)["images"] == "images and not nightly and not smoke"
    assert selected_by(rest)["unit"] == selected_by(default)["unit"].replace("not extensive", "extensive")
    assert {tier.name for tier in [*default, *rest]} == {tier.name for tier in tiers.ALL}
    commands = (tiers.PROJECT / ".ci" / "run").read_text().splitlines()
    assert "./scripts/fresh-machine --lend-pulumi './scripts/demo && ./scripts/test'" in commands
    assert commands[-1] == "./scripts/test --rest"


def test_a_tier_can_be_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [tier.name for tier in chosen_tiers(monkeypatch, "unit")] == ["unit"]
    assert [tier.name for tier in chosen_tiers(monkeypatch, "--nightly", "reclaims")] == ["reclaims"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonesuch"], "no such tier: nonesuch; choose from static, types, unit"),
        (["--part", "1/2"], "--part goes with --nightly"),
        (["--nightly", "--part", "3/2"], "'3/2' is not a part: write 1/4"),
        (["--nightly", "--all"], "not allowed with"),
    ],
)
def test_wrong_words_end_with_2_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        chosen_tiers(monkeypatch, *words)
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_the_parts_of_the_night_hold_each_tier_once_and_take_about_equally_long(parts: int) -> None:
    shared = [tiers.part_of(tiers.NIGHTLY, part, parts) for part in range(1, parts + 1)]
    assert sorted(tier.name for part in shared for tier in part) == sorted(tier.name for tier in tiers.NIGHTLY)
    spent = [sum(tier.minutes for tier in part) for part in shared]
    assert max(spent) <= sum(spent) / parts + max(tier.minutes for tier in tiers.NIGHTLY)


def test_each_file_is_in_one_tier_of_the_night_for_its_marker() -> None:
    for marker in ("images", "engine", "cluster"):
        shares = [tier.commands[0] for tier in tiers.NIGHTLY if f"({marker}) and nightly" in tier.commands[0]]
        whole = [share for share in shares if "tests" in share]
        named = [word for share in shares if share not in whole for word in share if word.startswith("tests/")]
        assert len(whole) == 1 and named
        assert sorted(f"--ignore={file}" for file in named) == sorted(w for w in whole[0] if w.startswith("--ignore"))


def test_a_newcomer_does_not_wait_for_the_build_of_pulumi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build = f"{tiers.PROJECT}/scripts/tools pulumi pulumi-language-python"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # a Pulumi of the user's own may be on it
    assert tiers.pulumi() == f"the Pulumi CLI is not built; `{build}` does it, in some minutes"
    assert not list(tmp_path.rglob("pulumi-*"))


def test_background_tiers_run_with_the_others_and_are_shown_one_after_the_other(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def shell(text: str) -> tiers.Command:
        return ["sh", "-c", text]

    until = f"until test -e {tmp_path}/$other; do sleep 0.01; done"
    meets = f"touch {tmp_path}/$0; for other in $@; do {until}; done; echo $0 met $@"
    tiers_ = [
        tiers.Tier("waiting", "waits", [["sh", "-c", meets, "waiting", "computing", "building"]], background=True),
        tiers.Tier("building", "builds", [["sh", "-c", meets, "building", "waiting"]], background=True),
        tiers.Tier(
            "computing", "computes", [["sh", "-c", meets, "computing", "waiting"], shell("exit 3"), shell("true")]
        ),
        tiers.Tier("impossible", "lacks something", [shell("echo never")], lambda: "needs a moon"),
    ]
    results = run_tests.Lanes().run(tiers_)

    assert [(result.tier.name, result.ended) for result in results] == [
        ("waiting", "passed"),
        ("building", "passed"),
        ("computing", "FAILED"),
        ("impossible", "left out"),
    ]
    assert results[2].note.endswith(": sh -c exit 3") and results[3].note == "needs a moon"
    printed = capfd.readouterr().out
    assert "== computing: computes\ncomputing met waiting\n" in printed
    assert "== waiting: waits (ran in the background)\nwaiting met computing building\n" in printed
    assert "== building: builds (ran in the background)\nbuilding met waiting\n" in printed
    assert "never" not in printed
