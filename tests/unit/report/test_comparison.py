import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.study.study import StudyOptions, Trial, grid_study
from spotmpi.study.sweep import sweep_folder
from tests.command_line import invoke
from tests.unit.report.recorded_runs import SPEC, Recorded, record_trials

NEW_CODE = {"code": {"files": {"programs": "e" * 64}, "commit": "f" * 40, "diff": None}}


def record_rates(runs: Path, name: str, rates: dict[int, list[float]], **values: Any) -> None:
    """A sweep whose trials at each node count have these rates."""
    study = grid_study(SPEC, StudyOptions(list(rates), repeats=len(next(iter(rates.values())))))

    def outcome(trial: Trial) -> Recorded:
        return Recorded(rates[trial.nodes][trial.repeat - 1], **values)

    record_trials(sweep_folder(name, runs), study, outcome, f"{name}-{{number}}")


def rates_near(rate: float, trials: int = 6) -> list[float]:
    return [rate * (1 + 0.01 * (at % 3 - 1)) for at in range(trials)]


def test_a_slower_rate_is_distinguished_from_noise_and_changes_are_listed(runs: Path) -> None:
    record_rates(runs, "old", {1: rates_near(10.0), 2: rates_near(18.0)})
    record_rates(runs, "new", {1: rates_near(10.02), 2: rates_near(15.0)}, work=NEW_CODE)
    code, out, _ = invoke("report", "--compare", "old", "new")
    assert code == 0
    one, two = out.splitlines()[1:3]
    assert one.startswith("base, 1 node") and one.endswith("within noise")
    assert two.startswith("base, 2 nodes") and "0.833" in two and two.endswith("slower")
    assert "95 % interval" in out
    assert "Changed: code.programs: bbbbbbbbbbbb, eeeeeeeeeeee" in out


def test_ci_fails_where_a_rate_fell_below_the_limit_by_more_than_noise(runs: Path) -> None:
    record_rates(runs, "old", {1: rates_near(10.0), 2: rates_near(18.0)})
    record_rates(runs, "new", {1: rates_near(9.95), 2: rates_near(15.0)})
    code, _, err = invoke("report", "--compare", "old", "new", "--fail-below", "0.95")
    assert code == 1
    assert err.splitlines() == ["spotmpi: base, 2 nodes: \N{MULTIPLICATION SIGN}0.833 is below --fail-below 0.95"]
    assert invoke("report", "--compare", "old", "new", "--fail-below", "0.8")[0] == 0
    assert invoke("report", "--compare", "new", "old", "--fail-below", "0.95")[0] == 0


def test_ci_fails_where_a_configuration_has_no_rate_any_more(runs: Path) -> None:
    """Exit 0 hid what had got so bad that no trial of it succeeded, or reported an iteration."""
    record_rates(runs, "old", {1: rates_near(10.0), 2: rates_near(18.0), 4: rates_near(30.0)})
    spec = grid_study(SPEC, StudyOptions([1, 2, 4], repeats=6))

    def outcome(trial: Trial) -> Recorded | None:
        rates = {1: Recorded(10.0), 2: Recorded(18.0, iterations=10), 4: None}  # ten iterations are the warm-up
        return rates[trial.nodes]

    record_trials(sweep_folder("new", runs), spec, outcome, "new-{number}")
    code, out, err = invoke("report", "--compare", "old", "new", "--fail-below", "0.95")
    assert code == 1
    assert err.splitlines() == [
        f"spotmpi: base, {nodes} nodes: new has no rate (see `spotmpi report new`)" for nodes in (2, 4)
    ]
    assert "In one of the two only: base, 2 nodes; base, 4 nodes" in out
    code, out, _ = invoke("report", "--compare", "old", "new", "--fail-below", "0.95", "--json")
    assert code == 1 and json.loads(out)["missing"] == ["base, 2 nodes", "base, 4 nodes"]
    assert invoke("report", "--compare", "old", "new")[0] == 0
    assert invoke("report", "--compare", "new", "old", "--fail-below", "0.95")[0] == 0  # more rows are no failure


def test_noise_alone_never_fails_and_json_says_so(runs: Path) -> None:
    record_rates(runs, "old", {1: [10.0, 13.0, 9.0]})
    record_rates(runs, "new", {1: [9.0, 9.2, 12.0]})
    code, out, _ = invoke("report", "--compare", "old", "new", "--fail-below", "0.95", "--json")
    assert code == 0
    (row,) = json.loads(out)["rows"]
    assert row["ratio"] == pytest.approx(0.92, abs=0.01)
    assert (row["verdict"], row["bounds"]) == ("within noise", "range over the trials")


@pytest.mark.parametrize(("trials", "verdict"), [(4, "unknown (fewer than 5 trials)"), (5, "slower")])
def test_only_an_interval_tells_a_change_from_noise(runs: Path, trials: int, verdict: str) -> None:
    """The ranges of 2 trials each, all of one program, are apart in a third of all comparisons."""
    record_rates(runs, "old", {1: rates_near(10.0, trials)})
    record_rates(runs, "new", {1: rates_near(9.0, trials)})
    code, out, _ = invoke("report", "--compare", "old", "new", "--fail-below", "0.95", "--json")
    assert [row["verdict"] for row in json.loads(out)["rows"]] == [verdict]
    assert code == 1


def test_a_change_is_named_where_it_holds_among_all_rows(runs: Path) -> None:
    """Each row had its own interval: of 20 that are equal, one was called faster or slower."""
    near, apart = [10.0, 10.1, 10.2, 10.3, 10.4], [10.35, 10.5, 10.6, 10.7, 10.9]
    for more, verdict in ((1, "faster"), (9, "unknown (one of several comparisons)")):
        old = {1: near, **dict.fromkeys(range(2, more + 1), near)}
        record_rates(runs, f"old{more}", old)
        record_rates(runs, f"new{more}", {**old, 1: apart})
        code, out, _ = invoke("report", "--compare", f"old{more}", f"new{more}", "--json")
        assert code == 0 and json.loads(out)["rows"][0]["verdict"] == verdict


def test_different_work_is_compared_only_by_force_and_marked(runs: Path) -> None:
    record_rates(runs, "old", {1: rates_near(10.0)})
    record_rates(runs, "new", {1: rates_near(10.0)}, work={"args": ["--global-batch", "128"]})
    code, _, err = invoke("report", "--compare", "old", "new")
    assert code == 2 and "different work (args: --global-batch 64, --global-batch 128)" in err and "--force" in err
    code, out, _ = invoke("report", "--compare", "old", "new", "--force")
    assert code == 0 and out.startswith("warning: different work: args")


def test_sweeps_without_a_common_configuration_and_wrong_options_are_refused(runs: Path) -> None:
    record_rates(runs, "old", {1: rates_near(10.0)})
    record_rates(runs, "new", {2: rates_near(10.0)})
    spec = grid_study(SPEC, StudyOptions([1], repeats=1))  # ten iterations are the warm-up
    record_trials(sweep_folder("none", runs), spec, lambda trial: Recorded(10.0, iterations=10), "none-{number}")
    for other, figures in (("new", "base, 2 nodes"), ("none", "nothing measured")):
        code, out, err = invoke("report", "--compare", "old", other)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"--compare: no figures in common: one has base, 1 node, the other {figures}; compare runs" in err
    assert invoke("report", "old", "--fail-below", "0.9")[0] == 2
    for share in ("nan", "0", "1.5"):
        assert "above 0 and at most 1" in invoke("report", "--compare", "old", "new", "--fail-below", share)[2]
    assert invoke("report", "old", "--compare", "old", "new")[0] == 2
    assert invoke("report", "--compare", "old", "nothing")[0] == 2


def test_a_variant_of_the_same_name_with_other_settings_is_different_work(runs: Path) -> None:
    """Only the first row that both sweeps have was compared, which is that of the base."""
    for name, batch in (("old", 64), ("new", 128)):
        study = grid_study(SPEC, StudyOptions([1], [f"big:args+=--loader-processes {batch}"], repeats=2))
        record_trials(sweep_folder(name, runs), study, lambda trial: Recorded(10.0), f"{name}-{{number}}")
    code, _, err = invoke("report", "--compare", "old", "new")
    assert code == 2 and "different work (args: " in err and "128" in err, err
    code, out, _ = invoke("report", "--compare", "old", "new", "--force")
    assert code == 0 and "big, 1 node" in out
