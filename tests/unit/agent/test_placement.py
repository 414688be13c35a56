"""Moving the gang of a run to the next node group of its order, on a cluster that a test scripts."""

from __future__ import annotations

import json
import re
import ssl
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.agent import context, placement, placement_controller, pod_context, record
from spotmpi.agent.attempt_history import AttemptHistory
from spotmpi.agent.context import in_run_folder
from spotmpi.agent.placement_controller import Controller, RequestFailed
from spotmpi.agent.plan import NODE
from spotmpi.agent.record import Record
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.spec.source import from_values
from tests.clocks import SetClock
from tests.unit.agent.placed_cluster import START, PlacedCluster

SIZE = 4
PATIENCE, PARTIAL, RETRY = 60.0, 90.0, 3600.0
ORDER = ("g5", "g6", "stable")
RATES = {"g5": 1.0, "g6": 2.0, "stable": 9.0}
BACKOFF = "2 node(s) didn't match Pod's node affinity/selector, 1 in backoff after failed scale-up"


def target(group: str) -> ClusterTarget:
    machine = {"node_group": group, "type": f"{group}.xlarge", "market": "spot"}
    tolerations = ({"key": group, "operator": "Exists"},)
    return ClusterTarget("here", "any:1", None, {"group": group}, tolerations, False, machine=tuple(machine.items()))


def planned(standby: int = 0) -> tuple[Any, Any]:
    """The JobSet of a run on the groups of `ORDER`, and the plan of its agents."""
    spec = from_values(
        {
            "command": ["x"],
            "nodes": SIZE,
            "standby": standby,
            "capacity": {"order": list(ORDER), "patience": f"{PATIENCE:g}s", "partial": f"{PARTIAL:g}s"},
        }
    )
    order = tuple(replace(target(group), job_per_node=bool(standby)) for group in ORDER)
    objects = kubernetes_plan(spec, replace(order[0], order=order), Submission("x-1", "ann", {}, {}, {}, rates=RATES))
    return objects[0], {**json.loads(objects[1]["data"]["plan.json"]), "submitted": float(START)}


JOBSET, PLAN = planned()
STANDBY_JOBSET, STANDBY_PLAN = planned(standby=1)


def cluster_with(**free: int) -> PlacedCluster:
    return PlacedCluster(JOBSET, SIZE, free)


def cluster_with_standby(**free: int) -> PlacedCluster:
    return PlacedCluster(STANDBY_JOBSET, SIZE, free)


def look(cluster: PlacedCluster) -> bool:
    """One look of a controller that was started a moment ago: what it knew before is lost."""
    api: Any = cluster
    return Controller(api, STANDBY_PLAN if cluster.standby else PLAN).look()


def run_for(cluster: PlacedCluster, seconds: float, step: float = 5.0) -> None:
    """Let time pass, with a look each *step* seconds."""
    until = cluster.now + seconds
    while cluster.now < until:
        cluster.pass_time(step)
        look(cluster)


def state_of(cluster: PlacedCluster) -> placement.State:
    jobset = cluster.jobset("x-1")
    assert jobset is not None
    state = placement.parse(jobset["metadata"]["annotations"][pod_context.PLACEMENT_ANNOTATION])
    assert state is not None
    return state


def groups_of(state: placement.State) -> list[str]:
    return [each["group"] for each in state["decisions"]]


def test_a_gang_that_has_all_its_nodes_stays_where_it_is() -> None:
    cluster = cluster_with(g5=SIZE, g6=SIZE)
    run_for(cluster, 10 * PATIENCE)
    assert cluster.places() == ["g5"] * SIZE and groups_of(state_of(cluster)) == ["g5"]


def test_a_gang_of_which_only_a_part_came_moves_as_a_whole_once_its_patience_is_over() -> None:
    cluster = cluster_with(g5=SIZE - 1, g6=SIZE)
    run_for(cluster, PATIENCE - 5)
    assert cluster.places().count("g5") == SIZE - 1 and not cluster.patches
    run_for(cluster, 30)
    assert cluster.places() == ["g6"] * SIZE
    decisions = state_of(cluster)["decisions"]
    assert decisions[1] == {
        "t": START + PATIENCE,
        "group": "g6",
        "type": "g6.xlarge",
        "market": "spot",
        "rate": 2.0,
        "reason": "g5 gave 3 of 4 nodes within 1m",
        "idle": 3 * (PATIENCE - 5),
        "idle_dollars": 0.0115,
    }


def test_pods_that_stand_by_go_where_their_gang_goes_which_does_not_wait_for_them() -> None:
    cluster = cluster_with_standby(g5=SIZE - 1, g6=SIZE)
    run_for(cluster, 10 * PATIENCE)
    assert cluster.places() == ["g6"] * SIZE + [None], "there is no room for the fifth, and the run goes on"
    assert groups_of(state_of(cluster)) == ["g5", "g6"]
    cluster.free["g6"] += 1
    run_for(cluster, 10)
    assert cluster.places() == ["g6"] * (SIZE + 1)
    selector = "spotmpi.dev/run=x-1,spotmpi.dev/role in (node,standby)"
    assert STANDBY_PLAN["capacity"]["pods"] == selector, "which all of these pods have"


def test_a_gang_of_which_a_pod_that_stands_by_took_over_a_lost_node_goes_on_where_it_is() -> None:
    cluster = cluster_with_standby(g5=SIZE + 1, g6=SIZE + 1)
    run_for(cluster, 30)
    cluster.free["g5"] = SIZE
    cluster.replace_a_pod()
    run_for(cluster, 10 * PATIENCE)
    assert cluster.places().count("g5") == SIZE and cluster.places().count(None) == 1
    assert groups_of(state_of(cluster)) == ["g5"], "the next pod of the lost node waits, and stands by then"
    cluster.free["g5"] = SIZE - 1
    cluster.replace_a_pod(SIZE)
    run_for(cluster, PATIENCE - 5)
    assert groups_of(state_of(cluster)) == ["g5"]
    run_for(cluster, 30)
    assert cluster.places() == ["g6"] * (SIZE + 1)
    assert state_of(cluster)["decisions"][1]["reason"] == "g5 gave 3 of 4 nodes within 1m"


def test_a_pod_that_stands_by_is_not_node_0_which_is_waited_for() -> None:
    cluster = cluster_with_standby(g5=SIZE + 1, g6=SIZE + 1)
    run_for(cluster, 30)
    cluster.free["g5"] = SIZE
    cluster.replace_a_pod(0)
    run_for(cluster, PATIENCE + 30)
    assert cluster.places() == ["g6"] * (SIZE + 1)
    assert state_of(cluster)["decisions"][1]["reason"].startswith("g5 gave 4 of 4 nodes, and none for node 0")


def test_nodes_that_are_given_back_have_cost_their_share_of_what_all_pods_cost() -> None:
    cluster = cluster_with_standby(g5=SIZE - 1, g6=SIZE)
    run_for(cluster, PATIENCE + 5)
    released = state_of(cluster)["decisions"][1]
    assert released["idle_dollars"] == round(released["idle"] * RATES["g5"] / (SIZE + 1) / 3600, 4)


def test_a_run_without_nodes_asks_each_group_again_later_and_later_up_to_an_hour_after_it_gave_none() -> None:
    cluster = cluster_with()
    run_for(cluster, 5 * 3600, 30)
    state = state_of(cluster)
    times = [each["t"] for each in state["seen"] if each["group"] == "g5"]
    minutes = [(later - before) / 60 for before, later in pairwise(times)]
    assert minutes[2:7] == pytest.approx([2 + each for each in (4, 8, 16, 32, 60)], abs=2.5), (
        "and a move and a patience"
    )
    assert max(minutes) < 65 and not any("until" in each for each in state["decisions"]), "there is nothing to release"
    last = [each for each in state["decisions"] if each["group"] == "g5"][-1]
    assert re.match(r"stable gave 0 of 4 nodes within 1m, nor in the 5\d min since; g5 is asked again$", last["reason"])
    since = placement.asked_again_since(state)
    assert since is not None and since < START + 600, "what limits.start counts from is kept with the newest decisions"
    assert len(state["decisions"]) == 20


@pytest.mark.parametrize("group", ORDER)
@pytest.mark.parametrize("minutes", [5, 90])
def test_a_run_that_waits_gets_the_nodes_of_any_group_within_as_long_again_or_an_hour(
    group: str, minutes: float
) -> None:
    cluster = cluster_with()
    run_for(cluster, 60 * minutes, 20)
    cluster.free[group] = SIZE
    run_for(cluster, min(60 * minutes, RETRY) + len(ORDER) * (PATIENCE + 60), 20)
    assert cluster.places() == [group] * SIZE
    state = state_of(cluster)
    run_for(cluster, RETRY, 60)
    assert cluster.places() == [group] * SIZE and state_of(cluster) == state
    last = state["decisions"][-1]
    assert last["group"] == group and last["rate"] == RATES[group]
    before = state["decisions"][-2]["group"]
    assert last["reason"].startswith(f"{before} gave 0 of 4 nodes within 1m")
    assert last["reason"].endswith(f"; {group} is asked again")


def test_groups_that_the_autoscaler_leaves_alone_at_once_are_not_asked_in_a_circle() -> None:
    cluster = cluster_with()
    cluster.refusals = dict.fromkeys(ORDER, BACKOFF)
    run_for(cluster, 3600, 10)
    assert len(cluster.patches) <= 2 * 3 * 7, "two for each move, and each group after 1, 2, 4 ... minutes"


def test_nodes_that_take_longer_than_the_patience_are_waited_for_in_the_end() -> None:
    """Each group has nodes, which take a minute and a half to start, counted anew wherever the run asks."""
    cluster = cluster_with()
    since, group = cluster.now, ""
    while cluster.now < START + 3600:
        if state_of(cluster)["at"] != group:
            since, group = cluster.now, state_of(cluster)["at"]
        cluster.free = {group: SIZE if cluster.now - since >= 1.5 * PATIENCE else 0}
        cluster.pass_time()
        look(cluster)
    assert cluster.places() == [group] * SIZE


def test_a_part_of_a_gang_in_the_last_group_is_given_back_and_asked_for_again_later_and_later() -> None:
    cluster = cluster_with(stable=SIZE - 1)
    run_for(cluster, 2 * PATIENCE + 30)
    assert cluster.places() == ["stable"] * (SIZE - 1) + [None]
    run_for(cluster, PARTIAL - 25)
    assert not cluster.suspended
    run_for(cluster, 35)
    assert cluster.suspended and not cluster.places()
    decision = state_of(cluster)["decisions"][-1]
    assert decision["group"] == "g5" and decision["reason"] == (
        "stable gave 3 of 4 nodes, and no other within 90s; they are released, and g5 is asked in 2 min"
    )
    assert decision["until"] == (decision["t"] or 0.0) + PARTIAL
    assert decision["idle"] == pytest.approx(3 * PARTIAL, abs=30) and decision["idle_dollars"] == pytest.approx(
        decision["idle"] * RATES["stable"] / SIZE / 3600, abs=1e-4
    )
    run_for(cluster, PARTIAL - 20)
    assert cluster.suspended
    run_for(cluster, 40)
    assert not cluster.suspended and state_of(cluster)["at"] == "g5"
    run_for(cluster, 4 * 3600)
    decisions = state_of(cluster)["decisions"]  # the first pause and the newest
    pauses = [each["until"] - (each["t"] or 0.0) for each in decisions if "until" in each]
    assert pauses[:4] == [PARTIAL, 2 * PARTIAL, 4 * PARTIAL, 8 * PARTIAL] and max(pauses) == RETRY

    cluster.free = dict.fromkeys(ORDER, SIZE)
    run_for(cluster, RETRY + 30)
    assert cluster.places() == ["g5"] * SIZE
    cluster.free = {"stable": 1}
    cluster.lose_a_node()
    run_for(cluster, 3 * PATIENCE + PARTIAL)
    assert cluster.suspended and state_of(cluster)["decisions"][-1]["until"] <= cluster.now + PARTIAL  # anew


def test_nodes_that_come_one_by_one_are_waited_for_from_the_first_on() -> None:
    cluster = cluster_with(g5=1)
    for number in range(2, SIZE + 1):
        run_for(cluster, 15)
        cluster.free["g5"] = number
    run_for(cluster, 15)
    assert cluster.places() == ["g5"] * SIZE and groups_of(state_of(cluster)) == ["g5"]


def test_a_lost_node_that_does_not_come_back_keeps_the_others_no_longer_than_that() -> None:
    cluster = cluster_with(stable=SIZE)
    run_for(cluster, 2 * PATIENCE + 3600)
    assert cluster.places() == ["stable"] * SIZE
    cluster.free["stable"] -= 1
    cluster.replace_a_pod()
    run_for(cluster, PATIENCE - 10)
    assert not cluster.suspended and cluster.places() == ["stable"] * (SIZE - 1) + [None]
    run_for(cluster, 30)  # the others have waited for the patience: the first group comes next
    assert state_of(cluster)["at"] == "g5"
    assert state_of(cluster)["decisions"][-1]["idle"] == pytest.approx(3 * PATIENCE, abs=30)


@pytest.mark.parametrize(
    ("message", "moves"),
    [
        (BACKOFF, True),
        (f"{BACKOFF}, 1 max node group size reached", False),  # which may be the group of the gang
        ("2 node(s) didn't match Pod's node affinity/selector, 1 not ready for scale-up", False),
        ("max total nodes in cluster reached", False),
    ],
)
def test_a_group_that_the_autoscaler_leaves_alone_after_a_failure_is_waited_for_no_longer(
    message: str, moves: bool
) -> None:
    cluster = cluster_with(g5=SIZE - 1, g6=SIZE)
    cluster.refusals["g5"] = message
    run_for(cluster, 25)
    assert (cluster.places() == ["g6"] * SIZE) == moves
    if moves:
        said = f"pod didn't trigger scale-up: {message}"
        assert state_of(cluster)["decisions"][-1]["reason"] == (
            f"g5 gave 3 of 4 nodes, and the autoscaler starts no more: {said}"
        )


def test_a_right_that_a_controller_has_not_is_said_once_and_a_failed_request_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "namespace").write_text("runs")
    monkeypatch.setattr("ssl.create_default_context", lambda **_: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    address = {"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}
    api = placement_controller.ClusterApi(str(tmp_path), address)
    asked: list[str] = []

    status = 500

    def refuse(method: str, path: str, body: Any = None) -> Any:
        asked.append(path)
        raise RequestFailed(f"{method} {path}: {status} no", status)

    monkeypatch.setattr(api, "_request", refuse)
    assert api.events("NotTriggerScaleUp") == [] and not api.scale("x-1-node-3", 0)
    status = 403
    for _ in range(2):
        assert api.events("NotTriggerScaleUp") == [] and not api.scale("x-1-node-3", 0)
        assert not api.change_pod("x-1-node-3-0-abcde", [])
    events = "/api/v1/namespaces/runs/events?fieldSelector=reason%3DNotTriggerScaleUp"
    pod = "/api/v1/namespaces/runs/pods/x-1-node-3-0-abcde"
    both = [events, "/apis/batch/v1/namespaces/runs/jobs/x-1-node-3"]
    assert asked == [*both, *both, pod], "what is forbidden is asked once"
    assert capsys.readouterr().err.count("`spotmpi up` gives the right") == 3


@pytest.mark.extensive("a long search: the tests above are its parts")
def test_in_a_hundred_shortages_no_node_is_paid_for_that_waits_for_others_longer_than_it_may() -> None:
    """Nodes come one by one, up to a number that changes; half of the time the autoscaler says that it has given up."""
    waits, whole = [], 0
    for seed in range(100):
        random, cluster = Random(seed), cluster_with()
        limit, since = dict.fromkeys(ORDER, 0), None
        until = cluster.now + 1800
        while cluster.now < until:
            if random.random() < 0.04:  # every six minutes
                limit = {name: random.choice([0, 1, SIZE - 1, SIZE - 1, SIZE]) for name in ORDER}
                failed = [name for name in ORDER if limit[name] < SIZE and random.random() < 0.5]
                cluster.refusals = dict.fromkeys(failed, BACKOFF)
            for name in ORDER:
                cluster.free[name] = min(limit[name], cluster.free.get(name, 0) + random.choice([0, 1]))
            cluster.pass_time(15.0)
            look(cluster)
            places = cluster.places()
            is_partial = None in places and any(places)
            if is_partial and since is None:
                since = cluster.now
            elif not is_partial and since is not None:
                waits.append(cluster.now - since)
                since = None
            whole += bool(places) and None not in places
    assert len(waits) > 100 and whole > 100
    assert PARTIAL - 15 < max(waits) <= PARTIAL + 15, max(waits)  # between two looks


def test_after_a_reclaim_the_present_group_comes_first_and_then_those_before_it() -> None:
    cluster = cluster_with(g6=SIZE)
    run_for(cluster, 2 * PATIENCE)
    assert cluster.places() == ["g6"] * SIZE
    cluster.free |= {"g5": SIZE}
    run_for(cluster, 3 * PATIENCE)
    assert cluster.places() == ["g6"] * SIZE  # nobody moves a run that has its nodes

    cluster.free |= {"g6": 1}
    cluster.lose_a_node()
    run_for(cluster, PATIENCE - 5)
    assert groups_of(state_of(cluster)) == ["g5", "g6"]
    run_for(cluster, 30)
    assert cluster.places() == ["g5"] * SIZE and groups_of(state_of(cluster)) == ["g5", "g6", "g5"]


def test_a_change_by_somebody_else_meanwhile_is_respected_and_the_move_made_at_the_next_look() -> None:
    cluster = cluster_with(g6=SIZE)
    run_for(cluster, PATIENCE - 5)
    cluster.meddle = True
    cluster.pass_time()
    with pytest.raises(RequestFailed, match="422"):
        look(cluster)
    assert not cluster.patches
    run_for(cluster, 30)
    assert cluster.places() == ["g6"] * SIZE


def test_a_run_that_is_still_being_submitted_or_was_suspended_by_somebody_else_is_not_resumed() -> None:
    cluster = cluster_with(g5=SIZE)
    cluster._jobset["spec"]["suspend"] = True
    run_for(cluster, 2 * PATIENCE)
    assert cluster.suspended and not cluster.patches


def test_the_controller_ends_with_its_run() -> None:
    ended, gone = cluster_with(), cluster_with()
    ended.end()
    gone.gone = True
    assert look(ended) and look(gone)


def test_the_controller_goes_on_after_answers_that_are_none_and_says_each_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    mounts = in_run_folder(str(tmp_path), "", "")._replace(plan=str(tmp_path / "plan.json"))
    cluster, clock = cluster_with(), SetClock()
    answers: list[Exception | None] = [ConnectionRefusedError("refused"), ConnectionRefusedError("refused")]
    answers += [RequestFailed("GET x: 500 no", 500), None]

    def jobset(run: str) -> Any:
        answer = answers.pop(0)
        if answer:
            raise answer
        return None

    monkeypatch.setattr(cluster, "jobset", jobset)
    monkeypatch.setattr(placement_controller, "ClusterApi", lambda: cluster)
    monkeypatch.setattr("spotmpi.agent.context.in_pod", lambda: mounts)
    assert placement_controller.run(clock=clock) == 0
    assert capsys.readouterr().err.splitlines() == ["refused; trying again", "GET x: 500 no; trying again"]
    assert clock.pauses == [placement_controller.INTERVAL] * 3


@pytest.mark.extensive("a long search: the tests above are its parts")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_comes_and_goes_no_gang_is_of_two_groups_and_none_stays_suspended(data: st.DataObject) -> None:
    cluster = cluster_with()
    for _ in range(data.draw(st.integers(1, 12))):
        cluster.free = {name: data.draw(st.sampled_from([0, 1, SIZE])) for name in ORDER}
        if data.draw(st.booleans()):
            cluster.lose_a_node()
        for _ in range(data.draw(st.integers(1, 30))):
            cluster.pass_time()
            assert len(set(filter(None, cluster.places()))) <= 1
            if data.draw(st.integers(0, 3)):  # else the controller is away
                look(cluster)
    cluster.free = {"stable": SIZE, "g5": SIZE, "g6": SIZE}
    waits = placement.waits_until(state_of(cluster)) or cluster.now
    run_for(cluster, waits - cluster.now + 20)
    run_for(cluster, 20)
    assert not cluster.suspended and None not in cluster.places()
    for patched in cluster.patches:
        state = placement.parse(patched["metadata"]["annotations"][pod_context.PLACEMENT_ANNOTATION])
        assert state is not None and not (state["moving"] and state["at"] in state["tried"])


def moved_state() -> placement.State:
    cluster = cluster_with(g6=SIZE)
    run_for(cluster, 2 * PATIENCE)
    return state_of(cluster)


def test_agents_count_the_price_of_the_group_that_they_are_on_and_wait_longer_while_another_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(json.dumps(PLAN))
    mounts = in_run_folder(str(tmp_path), str(tmp_path), "")._replace(
        plan=str(plan_file), secret=str(tmp_path), pod_info=str(tmp_path)
    )
    monkeypatch.setenv(pod_context.ENV_ROLE, NODE)
    monkeypatch.setenv(pod_context.ENV_INDEX, "0")
    first, moved = json.loads(JOBSET["metadata"]["annotations"][pod_context.PLACEMENT_ANNOTATION]), moved_state()

    def plan_in(state: Any) -> Any:
        (tmp_path / "annotations").write_text(
            f"{pod_context.PLACEMENT_ANNOTATION}={json.dumps(placement.to_text(state))}\n"
        )
        return context.read_pod_context(mounts, SetClock()).plan

    limit = PLAN["limits"]["start"]
    for state, values in (
        (first, (1.0, "g5", limit + PATIENCE)),
        (moved, (2.0, "g6", limit + PATIENCE)),
        ({**moved, "at": "stable", "tried": ["g5", "g6"]}, (9.0, "stable", limit)),
    ):
        plan = plan_in(state)
        assert (plan["rate"], plan["machine"]["node_group"], plan["limits"]["start"]) == values


def test_each_decision_is_recorded_once_with_its_own_time_by_whichever_agent_comes_next(tmp_path: Path) -> None:
    state = moved_state()
    for decisions in (state["decisions"][:1], state["decisions"], state["decisions"]):
        run_record = Record(str(tmp_path), SetClock())
        AttemptHistory(run_record, PLAN, PLAN["submitted"], SetClock()).record_decisions(decisions)
        run_record.close()
    events = [json.loads(line) for line in (tmp_path / record.EVENTS).read_text().splitlines()]
    assert [(each["event"], each["t"], each["group"], each["rate"]) for each in events] == [
        ("placed", START, "g5", 1.0),
        ("placed", START + PATIENCE, "g6", 2.0),
    ]
