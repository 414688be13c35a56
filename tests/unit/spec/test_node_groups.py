"""Which of an environment's node groups a run gets, the requests of its pods, and the error where none fits."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spotmpi
from spotmpi.agent.coordinator import CoordinatedAttempt
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.kubernetes.submit import deadline
from spotmpi.backends.kubernetes.submit.target import hourly_rate, placement_rates
from spotmpi.backends.targets import Target
from spotmpi.core.environment import Environment, NodeGroup
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.images import build as images
from spotmpi.images.registry import Pinned
from spotmpi.spec.job import JobSpec
from spotmpi.spec.node_groups import Choice, choose, pods_per_node
from spotmpi.spec.source import from_values
from tests.cloud.account.fake_account import FakeAccount
from tests.command_line import invoke
from tests.unit.core.test_environment import OUTPUTS

Object = dict[str, Any]
LABEL = "spotmpi.dev/group"


def group(name: str, gpus: int = 1, model: str = "t4", **more: Any) -> NodeGroup:
    labels = {LABEL: name, **({"k8s.amazonaws.com/accelerator": model} if gpus else {})}
    values = {**OUTPUTS["node_groups"][0], "name": name, "type": f"{name}.xlarge", "gpus": gpus, "labels": labels}
    return NodeGroup.model_validate({**values, "max": 8, **more})


CPUS, T4, L4 = group("c6i", 0), group("g4dn"), group("g6", model="l4")
FOUR = group("g5", 4, "a10g", vcpus=48, memory_mib=196608, allocatable_mib=190000)
G4DN, G5 = "g4dn (g4dn.xlarge)", "g5 (g5.xlarge)"


def choice_of(groups: list[NodeGroup], **values: Any) -> Choice:
    choice = choose(from_values({"image": "pytorch", "program": "digits", **values}), groups)
    assert isinstance(choice, Choice), choice
    return choice


def refusal_of(groups: list[NodeGroup], **values: Any) -> str:
    choice = choose(from_values({"image": "pytorch", "program": "digits", **values}), groups)
    assert isinstance(choice, list), choice
    return "; ".join(map(str, choice))


@pytest.mark.parametrize(("cpu", "count"), [(0.1, 40), ("500m", 8), (1.5, 2), (4, 1)])
def test_pods_share_a_node_by_parts_of_cpus(cpu: object, count: int) -> None:
    assert pods_per_node(from_values({"resources": {"cpu": cpu}}), T4) == count


@pytest.mark.parametrize(
    ("groups", "values", "names", "gpus"),
    [
        ([T4, FOUR], {"resources": {"gpu": 1}}, ["g4dn"], 1),
        ([T4, FOUR], {"resources": {"gpu": 1}, "slots": 4}, ["g5"], 1),
        ([T4, FOUR], {"resources": {"gpu": 2}, "slots": 2}, ["g5"], 2),
        ([T4, CPUS], {}, ["c6i"], 0),
        ([FOUR, T4], {}, ["g4dn"], 1),
        ([FOUR], {"slots": 4}, ["g5"], 1),
        ([FOUR], {"slots": 4, "resources": {"cpu": 12, "memory": "46Gi"}}, ["g5"], 1),
        ([FOUR], {"kubernetes": {"exclusive": False}, "resources": {"gpu": 2}, "nodes": 16}, ["g5"], 2),
        ([T4, L4], {"kubernetes": {"node_groups": ["g6"]}}, ["g6"], 1),
        ([T4, L4], {"kubernetes": {"node_groups": ["g6", "g4dn"]}, "nodes": 1}, ["g4dn", "g6"], 1),
    ],
)
def test_the_first_group_that_fits_is_chosen_and_filled(
    groups: list[NodeGroup], values: Object, names: list[str], gpus: int
) -> None:
    choice = choice_of(groups, **values)
    assert [each.name for each in choice.groups] == names
    assert choice.spec.resources.gpu == gpus


@st.composite
def environments(draw: st.DrawFn) -> list[NodeGroup]:
    """Node groups of different GPUs, sizes and prices."""
    kinds = st.tuples(st.sampled_from([0, 1, 4]), st.integers(1, 9), st.sampled_from([4, 48]), st.booleans())
    return [
        group(f"g{number}", gpus, max=most, vcpus=vcpus, market="spot" if spot else "on-demand")
        for number, (gpus, most, vcpus, spot) in enumerate(draw(st.lists(kinds, min_size=1, max_size=4)))
    ]


@st.composite
def requests(draw: st.DrawFn) -> JobSpec:
    """What a job asks of its nodes."""
    cpu, gpu = draw(st.sampled_from([0.5, 1, 4, 13])), draw(st.integers(0, 4))
    named = draw(st.just([]) | st.lists(st.sampled_from(["g0", "g1", "g2"]), unique=True, max_size=2))
    kubernetes = {"exclusive": draw(st.booleans()), "node_groups": named}
    size = {"nodes": draw(st.integers(1, 12)), "slots": draw(st.integers(1, 4))}
    return from_values({"resources": {"cpu": cpu, "gpu": gpu}, "kubernetes": kubernetes, **size})


@settings(max_examples=80)
@given(requests(), environments())
def test_the_chosen_groups_have_what_the_run_asks_for_and_a_refusal_means_that_none_has(
    spec: JobSpec, groups: list[NodeGroup]
) -> None:
    choice, named = choose(spec, groups, gang=False), spec.kubernetes.node_groups
    if isinstance(choice, list):
        assert choice and all(problem.field in ("nodes", "kubernetes.node_groups") for problem in choice)
        assert named or not any(isinstance(choose(spec, [each]), Choice) for each in groups)
        return
    fills = spec.kubernetes.exclusive
    assert [each.name for each in choice.groups] == [each.name for each in groups if each.name in named] or not named
    assert not fills or sum(each.max for each in choice.groups) >= spec.nodes
    for each in choice.groups:
        assert pods_per_node(spec, each) >= 1 and each.vcpus >= spec.slots * spec.resources.cpu
        used = choice.spec.resources.gpu * spec.slots
        assert used == each.gpus if fills else used <= each.gpus
    if not named and not spec.resources.gpu and choice.groups[0].gpus:
        assert all(group.gpus for group in groups if isinstance(choose(spec, [group]), Choice))
    again = choose(spec, choice.groups, gang=False)
    assert isinstance(again, Choice) and (again.groups, again.spec) == (choice.groups, choice.spec)


@pytest.mark.parametrize(
    ("kubernetes", "name"),
    [
        ({"instance_type": "g5.xlarge"}, "g5"),
        ({"instance_type": "g5.xlarge", "placement_group": False}, "g5-spread"),
        ({"node_selector": {LABEL: "g5-spread", "disk": "ssd"}}, "g5-spread"),
        ({"node_selector": {"node.kubernetes.io/instance-type": "g4dn.xlarge"}}, "g4dn"),
    ],
)
def test_type_placement_group_and_labels_tell_like_groups_apart(kubernetes: Object, name: str) -> None:
    spread = group("g5-spread", type="g5.xlarge", placement_group=False)
    choice = choice_of([T4, group("g5", placement_group=True), spread], kubernetes=kubernetes)
    assert [each.name for each in choice.groups] == [name]


def test_a_placement_group_and_every_label_that_differs_are_named() -> None:
    near = group("g5", placement_group=True)
    assert refusal_of([near], kubernetes={"placement_group": False}).endswith(f"{G5}: it has a placement group")
    labels = {LABEL: "g6", "node.kubernetes.io/instance-type": "g6.xlarge"}
    assert refusal_of([near], kubernetes={"node_selector": labels}).endswith(
        f"{G5}: requested: spotmpi.dev/group=g6, node.kubernetes.io/instance-type=g6.xlarge"
    )


def test_the_plan_notes_further_groups_that_fit() -> None:
    assert choice_of([T4, FOUR, group("g6")], resources={"gpu": 1}).others == ("g6",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodes": 9}, f"nodes = 9: 9 nodes x 1 slot fit no node group; {G4DN}: there are at most 8 nodes; g5"),
        ({"resources": {"gpu": 8}}, f"{G4DN}: GPUs per node: 1, requested: 8; {G5}: GPUs per node: 4"),
        ({"slots": 2}, f"{G5}: GPUs per node: 4, and all must be used: set slots = 4, or exclusive"),
        ({"resources": {"cpu": 4.5}}, f"{G4DN}: CPUs per node: 4, requested: 4.5"),
        ({"resources": {"cpu": 5}}, f"{G4DN}: CPUs per node: 4, requested: 5"),
        (
            {"resources": {"cpu": 13}, "slots": 4},
            "GPUs per node: 1, and all must be used: set slots = 1, or exclusive = false; "
            f"{G5}: CPUs per node: 48, requested: 52",
        ),
        (
            {"resources": {"memory": "47Gi"}, "slots": 4},
            f"{G5}: MiB for pods per node: 190000 of 196608, the rest is reserved; requested: 192512",
        ),
        ({"resources": {"memory": "47501Mi"}, "slots": 4}, "the rest is reserved; requested: 190004"),
        (
            {"resources": {"memory": "16Gi"}, "nodes": 2},
            f"{G4DN}: MiB for pods per node: 15454 of 16384, the rest is reserved; requested: 16384",
        ),
        (
            {"kubernetes": {"node_groups": ["p3", "g4dn"]}},
            "kubernetes.node_groups = 'p3': the environment has: g4dn, g5",
        ),
        (
            {"kubernetes": {"instance_type": "p3.2xlarge"}},
            f"{G4DN}: requested: p3.2xlarge; {G5}: requested: p3.2xlarge",
        ),
        ({"kubernetes": {"placement_group": True}}, f"{G4DN}: it has no placement group; g5"),
        (
            {"kubernetes": {"node_selector": {LABEL: "g5"}}},
            f"{G4DN}: requested: spotmpi.dev/group=g5; {G5}: GPUs per node",
        ),
        ({"kubernetes": {"node_groups": ["g5"]}}, "kubernetes.node_groups = ['g5']: 1 node x 1 slot fit no node "),
        (
            {"kubernetes": {"node_groups": ["g4dn", "g5"], "exclusive": False}, "resources": {"gpu": 1}},
            "kubernetes.node_groups = ['g4dn', 'g5']: have different numbers of GPUs: name groups with the same number",
        ),
    ],
)
def test_a_run_that_fits_no_group_is_refused_with_a_reason_for_each(values: Object, message: str) -> None:
    assert message in refusal_of([T4, FOUR], **values)


def test_a_gang_is_never_of_two_groups_though_workers_may_be() -> None:
    named = {"kubernetes": {"node_groups": ["g4dn", "g6"]}, "nodes": 2}
    assert refusal_of([T4, L4], **named) == (
        "kubernetes.node_groups = ['g4dn', 'g6']: nodes would come from any of them, so the gang would be in several "
        "placement groups: name one, or name them in capacity.order, one after the other"
    )
    assert isinstance(choose(from_values(named), [T4, L4], gang=False), Choice)


STABLE, DENSE = group("g6-stable", model="l4", market="on-demand"), group("p3", model="v100")


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (["g6", "g4dn"], ["g6", "g4dn"]),
        (["g6", "spot"], ["g6", "g4dn", "p3"]),
        (["spot", "g6"], ["g4dn", "p3", "g6"]),
        (["g4dn", "on-demand"], ["g4dn", "g6-stable"]),
        (["on-demand"], ["g6-stable"]),
    ],
)
def test_an_order_is_of_groups_and_of_markets_each_with_its_groups_that_no_entry_names_and_the_run_fits(
    order: list[str], names: list[str]
) -> None:
    choice = choice_of([T4, L4, FOUR, STABLE, DENSE], capacity={"order": order}, resources={"gpu": 1})
    assert [each.name for each in choice.every_group] == names
    assert (len(choice.groups), choice.spec.resources.gpu) == (1, 1)


def test_all_problems_of_an_order_come_at_once_each_with_its_remedy() -> None:
    order = ["g6", "p9", "g6", "g5", "c6i", "on-demand", "spot"]
    kubernetes = {"node_groups": ["g6"], "queue": "gpus"}
    small = group("g6", model="l4", max=1)
    assert refusal_of([small, FOUR, CPUS], capacity={"order": order}, kubernetes=kubernetes, nodes=2, slots=4).split(
        "; capacity."
    ) == [
        "kubernetes.queue = 'gpus': Kueue would decide where the nodes come from as well: remove it, or capacity.order"
        "; kubernetes.node_groups = ['g6']: capacity.order names the groups already: remove one of the two",
        "order = 'g6': is named twice: remove one of the two",
        "order = 'g6': 2 nodes x 4 slots fit no node group; g6 (g6.xlarge): there is at most 1 node",
        "order = 'p9': the environment has the groups g6, g5, c6i; markets are spot, on-demand and capacity-block",
        "order = 'on-demand': the environment has no on-demand group: add one to its stack (spotmpi:groups with "
        "`market`), or remove it",
        "order = 'spot': all spot groups of the environment are named already: remove it",
        "order = ['g5', 'c6i']: GPUs per node differ (g5: 4, c6i: 0): name groups with the same number",
    ]


def test_groups_of_an_order_have_as_many_efa_interfaces_and_a_pool_has_no_gang_to_place() -> None:
    fabric = group("p4d", efa_interfaces=4)
    assert refusal_of([T4, fabric], capacity={"order": ["g4dn", "p4d"]}) == (
        "capacity.order = ['g4dn', 'p4d']: EFA interfaces differ (g4dn: 0, p4d: 4): name groups with the same number"
    )
    pool = {"launcher": "pool", "pool": {"count": 2}, "program": None}
    assert refusal_of([T4], **pool, capacity={"order": ["g4dn"]}) == (
        "capacity.order = ['g4dn']: workers of a pool are not a gang: name their groups in pool.node_groups"
    )


def test_a_cluster_without_node_groups_has_none_to_put_in_order(lab_file: Path) -> None:
    spec = {"command": ["true"], "capacity": {"order": ["g4dn"]}, "kubernetes": {"image": "mine:1"}}
    with pytest.raises(InputError, match=r"capacity.order = \['g4dn'\]: needs an environment with node groups"):
        spotmpi.plan_run({**spec, "launcher": "none"}, (), Target("kubernetes"))


@pytest.mark.parametrize(
    ("image", "capability", "arguments"),
    [
        ("pytorch", "7.5", []),
        ("pytorch", "8.9", []),
        ("pytorch", None, []),
        ("pytorch", "7.0", ["BASE_IMAGE", "REQUIREMENTS"]),
        ("chainermn", "7.0", []),
        ("chainermn", "3.7", None),
        ("pytorch", "3.7", None),
        ("chainermn", "10.0", None),
    ],
)
def test_an_image_is_built_in_a_way_that_has_kernels_for_the_gpu_or_there_is_none(
    image: str, capability: str | None, arguments: list[str] | None
) -> None:
    build = images.build_with_kernels(image, capability)
    assert (build and [name for name, _ in build.arguments]) == arguments


@pytest.fixture
def lab_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubeconfig: None) -> Path:
    """The outputs of an environment with T4, V100 and K80 nodes, and a kubeconfig."""
    monkeypatch.chdir(tmp_path)
    groups = [group("g4dn"), group("p3", model="v100"), group("p2", model="k80")]
    repositories = {name: f"registry/{name}" for name in ("chainermn", "pytorch")}
    exported = {"node_groups": [each.model_dump(mode="json") for each in groups], "repositories": repositories}
    path = tmp_path / "lab.json"
    path.write_text(json.dumps({**OUTPUTS, **exported}))
    return path


def plan_of(lab_file: Path, *overrides: str) -> Object:
    return {**spotmpi.plan_run({"image": "pytorch", "program": "digits", "nodes": 2}, overrides, Target(str(lab_file)))}


def pod_of(plan: Object) -> Object:
    pod: Object = plan["objects"][0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return pod


def agents_plan_of(plan: Object) -> Object:
    agents_plan: Object = json.loads(plan["objects"][1]["data"]["plan.json"])
    return agents_plan


def test_a_plan_in_an_environment_lands_on_its_nodes_and_says_which(lab_file: Path) -> None:
    plan = plan_of(lab_file)

    pod = pod_of(plan)
    assert pod["nodeSelector"][LABEL] == "g4dn"
    taint = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    assert taint in pod["tolerations"]
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "2400m", "nvidia.com/gpu": "1"}
    assert "topologySpreadConstraints" in pod
    assert plan["notes"] == [
        "node group g4dn: g4dn.xlarge, GPUs per slot: 1 (also fit: p3, p2; choose with kubernetes.node_groups)"
    ]
    agents = agents_plan_of(plan)
    assert agents["work"]["resources"]["gpu"] == 1
    assert agents["work"]["container"] == pod["containers"][0]["image"]
    assert agents["machine"] == {
        **{"zone": "us-east-1a", "node_group": "g4dn", "type": "g4dn.xlarge", "market": "spot"},
        "placement_group": "no",
    }


def test_gpus_that_need_another_build_get_it_and_the_plan_notes_it(lab_file: Path) -> None:
    plan = plan_of(lab_file, "kubernetes.node_groups+=p3")

    assert pod_of(plan)["containers"][0]["image"] != pod_of(plan_of(lab_file))["containers"][0]["image"]
    assert plan["notes"][1].endswith("--build-arg REQUIREMENTS=requirements-v100.lock --on STACK")


def test_an_image_without_kernels_for_the_gpu_is_refused(lab_file: Path) -> None:
    remedy = "choose another node group, or an image by kubernetes.image"
    message = rf"image = 'pytorch': no build has kernels for the GPUs of p2 \(p2.xlarge, sm_37\): {remedy}$"
    with pytest.raises(InputError, match=message):
        plan_of(lab_file, "kubernetes.node_groups+=p2")
    own = plan_of(lab_file, "kubernetes.node_groups+=p2", "kubernetes.image=mine:1")
    assert pod_of(own)["nodeSelector"][LABEL] == "p2"


def test_problems_with_the_environment_come_together_with_those_of_the_spec(lab_file: Path) -> None:
    with pytest.raises(InputError) as caught:
        plan_of(lab_file, "slots=2", "program=none")
    assert [problem.field for problem in caught.value.problems] == ["program", "nodes"]


def test_a_named_image_is_pulled_and_recorded_with_its_registrys_digest(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = Pinned("mine@sha256:1", "a note")
    monkeypatch.setattr("spotmpi.images.registry.pin_named", {"mine": pinned}.__getitem__)
    plan = plan_of(lab_file, "kubernetes.image=mine")

    assert pod_of(plan)["containers"][0]["image"] == "mine@sha256:1" and "a note" in plan["notes"]
    assert agents_plan_of(plan)["work"]["container"] == "mine@sha256:1"
    assert 'image = "mine"' in agents_plan_of(plan)["files"]["spec.toml"]


def test_node_groups_without_an_environment_are_refused(lab_file: Path) -> None:
    spec = {"command": ["true"], "kubernetes": {"node_groups": ["g4dn"], "image": "mine:1"}, "launcher": "none"}
    with pytest.raises(InputError, match=r"kubernetes.node_groups = \['g4dn'\]: needs an environment with node groups"):
        spotmpi.plan_run(spec, (), Target("kubernetes"))
    assert spotmpi.plan_run(spec)["backend"] == "local"


ORDER = ("kubernetes.image=mine", 'capacity.order=["g4dn", "p3"]', "capacity.patience=5m")


def test_a_plan_says_in_which_order_groups_are_tried_and_what_the_run_costs_on_each(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prices(environment: Any, groups: Any) -> dict[str, float]:
        return {"g4dn": 0.2, "p3": 1.05}

    monkeypatch.setattr("spotmpi.aws.prices.group_prices", prices)
    plan = plan_of(lab_file, *ORDER)
    assert plan["notes"][0] == (
        "capacity: all 2 nodes from g4dn (g4dn.xlarge, spot, $0.4 an hour), else from p3 (p3.xlarge, spot, $2.1 an "
        "hour); patience: 5m, GPUs per slot: 1"
    )
    assert [each["rate"] for each in agents_plan_of(plan)["capacity"]["placements"]] == [0.4, 2.1]

    monkeypatch.setattr("spotmpi.aws.prices.group_prices", raise_no_rights)
    assert "g4dn (g4dn.xlarge, spot, price unknown)" in plan_of(lab_file, *ORDER)["notes"][0]
    assert "p3 (p3.xlarge, spot, $3 an hour)" in plan_of(lab_file, *ORDER, "price=1.5")["notes"][0]


def test_a_run_that_may_have_fewer_nodes_has_a_controller_with_an_order_and_without(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = {"g4dn": 0.2, "p3": 1.05}
    monkeypatch.setattr(
        "spotmpi.aws.prices.group_prices", lambda _, groups: {each.name: prices[each.name] for each in groups}
    )
    sizes = ("kubernetes.image=mine", "nodes=[1, 2]")
    plan = plan_of(lab_file, *sizes, *ORDER[1:])
    assert plan["notes"][0] == (
        "capacity: all 2 nodes, or at least 1, from g4dn (g4dn.xlarge, spot, $0.4 an hour), else from p3 (p3.xlarge, "
        "spot, $2.1 an hour); patience: 5m, GPUs per slot: 1"
    )
    released = "each attempt has 1 or 2 nodes, as many as there are; pods beyond that are released after 5m, and"
    assert any(note.startswith(released) for note in plan["notes"]), plan["notes"]

    alone = plan_of(lab_file, *sizes)
    assert alone["notes"][0].startswith("capacity: all 2 nodes, or at least 1, from g4dn (g4dn.xlarge, spot, $0.4")
    assert [each["name"] for each in agents_plan_of(alone)["capacity"]["placements"]] == ["g4dn"]
    assert any(each["metadata"]["name"].endswith("-placement") for each in alone["objects"])

    lab_file.write_text(json.dumps({**json.loads(lab_file.read_text()), "placement_account": None}))
    without = plan_of(lab_file, *sizes)
    assert "capacity" not in agents_plan_of(without)
    assert any(note.endswith("pods beyond that stand by, and cost as much as nodes") for note in without["notes"])


def test_pods_that_stand_by_are_in_the_price_of_each_group_and_move_with_the_gang(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = {"g4dn": 0.2, "p3": 1.05}
    monkeypatch.setattr(
        "spotmpi.aws.prices.group_prices", lambda _, groups: {each.name: prices[each.name] for each in groups}
    )
    monkeypatch.setattr(KubernetesBackend, "_restart_obstacle", lambda *_: None)
    plan = plan_of(lab_file, *ORDER, "standby=1")
    assert plan["notes"][0].startswith(
        "capacity: all 2 nodes, and 1 to stand by, from g4dn (g4dn.xlarge, spot, $0.6 an hour), else from p3"
    )
    assert any(note.startswith("1 pod stands by for lost nodes for $1.05 of $3.15 an hour") for note in plan["notes"])
    agents = agents_plan_of(plan)
    assert [each["rate"] for each in agents["capacity"]["placements"]] == pytest.approx([0.6, 3.15])
    assert agents["capacity"]["standby"] == 1
    fixed = plan_of(lab_file, *ORDER, "standby=1", "price=1.5")
    assert [each["rate"] for each in agents_plan_of(fixed)["capacity"]["placements"]] == [4.5, 4.5]


def raise_no_rights(environment: Any, groups: Any, *_: Any) -> Any:
    raise SpotmpiError("not permitted")


def test_an_order_needs_gpus_that_one_build_of_the_image_fits_and_an_environment_that_can_move_runs(
    lab_file: Path,
) -> None:
    with pytest.raises(InputError, match=r"the GPUs of g4dn, p3 need different builds of it"):
        plan_of(lab_file, *ORDER[1:])
    lab_file.write_text(json.dumps({**json.loads(lab_file.read_text()), "placement_account": None}))
    with pytest.raises(InputError, match=r"has no service account that moves runs; `spotmpi up` adds it"):
        plan_of(lab_file, *ORDER)


def test_elsewhere_an_order_has_no_effect_and_the_plan_says_so() -> None:
    plan = spotmpi.plan_run({"command": ["true"], "launcher": "none", "capacity": {"order": ["spot"]}})
    assert "no effect on this machine, which has all nodes: capacity.order" in plan["notes"]


def test_a_limit_of_cost_goes_by_the_price_of_the_groups_that_the_run_may_use(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups_asked: list[list[str]] = []

    def prices(environment: Any, groups: list[NodeGroup]) -> dict[str, float]:
        groups_asked.append([each.name for each in groups])
        return {each.name: 2.0 for each in groups}

    monkeypatch.setattr("spotmpi.aws.prices.group_prices", prices)
    plan = plan_of(lab_file, "limits.cost=1", "kubernetes.node_groups+=p3")

    assert groups_asked and all(names == ["p3"] for names in groups_asked)
    assert agents_plan_of(plan)["rate"] == 4.0


@pytest.mark.parametrize("more", [("capacity.deadline=30h", "capacity.work=20h"), ('capacity.order=["g4dn", "p3"]',)])
def test_a_limit_of_cost_goes_by_the_prices_of_the_spec_where_aws_tells_none(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """It asked for `price`, which a deadline refuses."""
    with_on_demand(lab_file)
    monkeypatch.setattr("spotmpi.aws.prices.group_prices", raise_no_rights)
    prices = "capacity.prices={g4dn=0.2, p3=1.05, p2=0.4, stable=0.5}"
    plan = plan_of(lab_file, "kubernetes.image=mine", "limits.cost=80", prices, *more)
    assert agents_plan_of(plan)["limits"]["cost"] == 80
    with pytest.raises(SpotmpiError, match="not permitted"):
        plan_of(lab_file, "kubernetes.image=mine", "limits.cost=80", "capacity.prices={g4dn=0.2}", *more)


DEADLINE = ("kubernetes.image=mine", "capacity.deadline=30h", "capacity.work=20h")


def with_on_demand(lab_file: Path) -> None:
    """Let the environment of *lab_file* have on-demand nodes like those of g4dn."""
    outputs = json.loads(lab_file.read_text())
    stable = {**outputs["node_groups"][0], "name": "stable", "market": "on-demand"}
    lab_file.write_text(json.dumps({**outputs, "node_groups": [*outputs["node_groups"], stable]}))


def test_a_deadline_may_use_each_group_that_the_run_fits_and_the_plan_says_what_to_expect(lab_file: Path) -> None:
    with_on_demand(lab_file)
    prices = "capacity.prices={g4dn=0.2, p3=1.05, p2=0.4, stable=0.5}"
    plan = plan_of(lab_file, *DEADLINE, prices)
    assert plan["notes"][0] == (
        "capacity: all 2 nodes from g4dn (g4dn.xlarge, spot, $0.4 an hour) or p3 (p3.xlarge, spot, $2.1 an hour) or "
        "p2 (p2.xlarge, spot, $0.8 an hour) or stable (g4dn.xlarge, on-demand, $1 an hour); patience: 10m, 5m once "
        "some are there, GPUs per slot: 1"
    )
    expected, begins = plan["notes"][1:3]
    assert expected.startswith("deadline: expected to cost $") and "on-demand nodes alone: $20.08" in expected
    assert begins.startswith("deadline: begins on g4dn: $0.40 per hour, $")
    agents = agents_plan_of(plan)
    assert agents["capacity"]["deadline"] == {
        "at": None,
        "after": 108000.0,
        "work": 72000.0,
        "lost_work": 0.0,
        "market": "auto",
        "budget": None,
    }
    forecast = agents["capacity"]["forecast"]
    assert 8 < forecast["low"] <= forecast["dollars"] <= forecast["high"] < 21 and forecast["in_time"] == 1.0
    assert "policy.tar.gz" in plan["objects"][1]["binaryData"]
    (controller,) = [each for each in plan["objects"] if each["metadata"]["name"].endswith("placement")]
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "spotmpi.capacity.controller"
    assert [each["name"] for each in container["volumeMounts"]] == ["config", "work", "volume"]
    again = plan_of(lab_file, *DEADLINE, prices, "capacity.market=on-demand", "capacity.budget=25")
    assert agents_plan_of(again)["limits"]["cost"] == 25 and "nothing to choose" in again["notes"][0]
    assert agents_plan_of(again)["rate"] == 1.0, "or the limit would have no effect"


@pytest.mark.parametrize(("known", "own", "dollars"), [({"p2": 0.4}, {}, 1.6), ({"p3": 0.9}, {"price": 0.1}, 0.7)])
def test_workers_cost_what_the_spec_says_of_them_or_of_their_node_group(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, float], own: dict[str, float], dollars: float
) -> None:
    """AWS was asked for them in any case; where it did not tell, the prices of no group were asked for."""
    monkeypatch.setattr("spotmpi.aws.prices.group_prices", raise_no_rights)
    groups = [group("g4dn"), group("p2"), group("p3"), group("stable", type="g4dn.xlarge", market="on-demand")]
    lab = Environment.model_validate({**OUTPUTS, "node_groups": groups})

    def spec(prices: dict[str, float], **workers: float) -> JobSpec:
        capacity = {"deadline": "30h", "work": "20h", "prices": {"g4dn": 0.2, "stable": 0.5, **prices}}
        stream = {"source": "s3://set", "batch": 8, "workers": {"count": 3, "node_groups": ["p2"], **workers}}
        kubernetes = {"image": "mine", "node_groups": ["g4dn", "stable"]}
        run = {"command": ["true"], "nodes": 2, "limits": {"cost": 80}}
        return from_values({**run, "capacity": capacity, "stream": stream, "kubernetes": kubernetes})

    rates = {"g4dn": pytest.approx(dollars), "stable": pytest.approx(dollars + 0.6)}
    assert placement_rates(spec(known, **own), lab) == rates
    assert hourly_rate(spec(known, **own), lab) == pytest.approx(dollars + 0.6)
    (problem,) = deadline.problems(spec({}), lab, datetime(2027, 1, 1, tzinfo=UTC))
    assert str(problem).endswith("needed of p2 for a deadline, since AWS tells none: not permitted")


def test_a_deadline_whose_on_demand_nodes_the_account_may_not_have_is_refused_before_the_start(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch, account: FakeAccount
) -> None:
    """Else it would be known at the last safe moment, when it is too late."""
    with_on_demand(lab_file)
    monkeypatch.setattr("spotmpi.aws.account.open_account", lambda region: account)
    prices = "capacity.prices={g4dn=0.2, p3=1.05, p2=0.4, stable=0.5}"
    account.quotas.values["L-DB2E81BA"] = 4.0
    with pytest.raises(InputError) as caught:
        plan_of(lab_file, *DEADLINE, prices, "capacity.budget=5")
    vcpus, *_ = (each["vcpus"] for each in json.loads(lab_file.read_text())["node_groups"])
    quota, budget = map(str, caught.value.problems)
    assert quota == (
        "capacity.market = 'auto': the deadline needs on-demand nodes, and the quota on-demand G and VT (L-DB2E81BA) "
        f"allows 4 vCPUs in us-east-1, and 2 x g4dn.xlarge have {2 * vcpus} (`aws service-quotas "
        "request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA --desired-value "
        f"{2 * vcpus} --region us-east-1`): request an increase, use fewer nodes, or set capacity.market = "
        '"spot", which may be late'
    )
    assert budget.startswith("capacity.budget = 5.0: on-demand nodes for all of the work cost")
    assert plan_of(lab_file, *DEADLINE, prices, "capacity.market=spot")
    account.refuse("GetServiceQuota", "AccessDeniedException")
    assert plan_of(lab_file, *DEADLINE, prices), "who may not read quotas can start runs"


def test_a_deadline_goes_together_with_several_numbers_of_nodes(lab_file: Path) -> None:
    with_on_demand(lab_file)
    prices = "capacity.prices={g4dn=0.2, p3=1.05, p2=0.4, stable=0.5}"
    plan = plan_of(lab_file, *DEADLINE, prices, "nodes=[1, 2]")
    assert plan["notes"][0].startswith("capacity: all 2 nodes, or at least 1, from g4dn (g4dn.xlarge, spot, $0.4")
    assert plan["notes"][1].startswith("deadline: expected to cost $") and "alone: $20.08" in plan["notes"][1]
    agents = agents_plan_of(plan)
    assert agents["elastic"]["sizes"] == [1, 2] and agents["capacity"]["deadline"]["work"] == 72000.0
    with pytest.raises(
        InputError, match=r"on-demand nodes need 30 h 5 min \(20 h of work and 10 h 5 min for a start\)"
    ):
        plan_of(lab_file, *DEADLINE, prices, "nodes=[1, 2]", "capacity.patience=10h")
    assert plan_of(lab_file, *DEADLINE, prices, "capacity.patience=10h"), "of one number no node waits for others"
    with pytest.raises(InputError) as caught:
        plan_of(lab_file, *DEADLINE, prices, "capacity.patience=2d")
    assert str(caught.value) == (
        "capacity.patience = '2d': no other node group would be asked in the 30 h to the deadline: set less than that"
    )


def test_all_problems_of_a_deadline_come_before_anything_is_started(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotmpi.aws.prices.group_prices", raise_no_rights)
    with pytest.raises(InputError) as caught:
        zones = 'capacity.zones=["us-east-1a", "us-east-1b"]'
        plan_of(lab_file, *DEADLINE, zones, "capacity.deadline=20h", "price=3")
    assert [str(each) for each in caught.value.problems] == [
        "price = 3.0: is one price for all markets, by which none is better: give capacity.prices for each node group",
        "capacity.deadline = '20 h': on-demand nodes need 20 h 5 min (20 h of work and 5 min for a start): set at "
        'least "1205m", or allow more nodes',
        "capacity.zones = 'us-east-1b': the environment has nodes in us-east-1a: use one of these, or add it to "
        "`zones` of its stack",
        "capacity.market = 'auto': the deadline needs an on-demand group that the run fits, and there is none: add one "
        'to its stack (spotmpi:groups with `market`), or set capacity.market = "spot", which may be late',
    ]
    with pytest.raises(InputError) as caught:
        plan_of(lab_file, *DEADLINE, 'capacity.zones=["us-east-1b"]', "nodes=99")
    prices, zone, nodes = map(str, caught.value.problems)
    assert prices.startswith("capacity.prices: needed of g4dn and p3 and p2 for a deadline")
    assert zone.startswith("capacity.zones = 'us-east-1b'") and nodes.startswith("nodes = 99: 99 nodes x 1 slot fit no")
    with_on_demand(lab_file)
    with pytest.raises(InputError) as caught:
        plan_of(lab_file, *DEADLINE, "capacity.prices.p9=1", 'capacity.instance_types=["g4dn.xlarge", "p5"]')
    assert [str(each) for each in caught.value.problems] == [
        "capacity.prices: needed of g4dn and stable for a deadline, since AWS tells none: not permitted",
        "capacity.instance_types = 'p5': the environment has: g4dn.xlarge, p2.xlarge, p3.xlarge",
        "capacity.prices = 'p9': the environment has: g4dn, p2, p3, stable",
    ]
    with pytest.raises(InputError) as caught:
        plan_of(lab_file, *DEADLINE, "capacity.budget=5", "capacity.prices={p3=3, p2=2}")
    (problem,) = caught.value.problems
    assert str(problem) == (
        "capacity.prices = { p3 = 3.0, p2 = 2.0 }: needed of g4dn and stable for a deadline, since AWS tells none: not "
        "permitted"
    )


def test_what_a_deadline_lacks_in_the_account_comes_together_with_what_is_wrong_in_the_spec(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch, account: FakeAccount
) -> None:
    with_on_demand(lab_file)
    monkeypatch.setattr("spotmpi.aws.prices.group_prices", raise_no_rights)
    monkeypatch.setattr("spotmpi.aws.account.open_account", lambda region: account)
    account.quotas.values["L-DB2E81BA"] = 4.0
    wrong = ("program=ssd", 'args=["--global-batch", "64", "--synthetic"]', "nodes=[2, 3]", "capacity.deadline=10h")
    with pytest.raises(InputError) as caught:
        plan_of(lab_file, *DEADLINE, *wrong, 'capacity.zones=["us-east-1b"]')
    assert [str(each).partition(": ")[0] for each in caught.value.problems] == [
        "capacity.prices",
        "capacity.market = 'auto'",
        "capacity.deadline = '10 h'",
        "nodes = [2, 3]",
        "capacity.zones = 'us-east-1b'",
    ]


@pytest.mark.parametrize(
    "misfit",
    [("nodes=99",), ("resources.gpu=8",), ("kubernetes.placement_group=true",), ("kubernetes.queue=ml",)],
)
def test_a_deadline_of_a_run_that_fits_no_node_group_lacks_prices_quota_and_money_at_once(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch, account: FakeAccount, misfit: tuple[str, ...]
) -> None:
    with_on_demand(lab_file)
    monkeypatch.setattr("spotmpi.aws.account.open_account", lambda region: account)
    account.quotas.values["L-DB2E81BA"] = 4.0
    prices = "capacity.prices={g4dn=0.2, p3=1.05, p2=0.4, stable=0.5}"

    def problems(*more: str) -> list[str]:
        with pytest.raises(InputError) as caught:
            plan_of(lab_file, *DEADLINE, *misfit, *more)
        return [str(problem) for problem in caught.value.problems]

    quota, budget, *_ = problems(prices, "capacity.budget=5")
    assert "allows 4 vCPUs in us-east-1" in quota and budget.startswith("capacity.budget = 5.0")
    monkeypatch.setattr("spotmpi.aws.prices.group_prices", raise_no_rights)
    missing, quota, *_ = problems()
    assert "needed of g4dn and p3 and p2 and stable" in missing and "allows 4 vCPUs in us-east-1" in quota
    spot = problems(prices, 'kubernetes.node_groups=["g4dn"]')
    assert not any("vCPUs" in problem for problem in spot), "its nodes are on no other"


def test_a_capacity_block_that_has_ended_is_named_together_with_a_misfit(
    lab_file: Path, monkeypatch: pytest.MonkeyPatch, account: FakeAccount
) -> None:
    outputs = json.loads(lab_file.read_text())
    block = {**outputs["node_groups"][0], "name": "block", "market": "capacity-block", "reservation": "cr-0"}
    lab_file.write_text(json.dumps({**outputs, "node_groups": [*outputs["node_groups"], block]}))
    monkeypatch.setattr("spotmpi.aws.account.open_account", lambda region: account)
    monkeypatch.setattr("spotmpi.aws.capacity_blocks.capacity_blocks", lambda *_: {})
    with pytest.raises(InputError) as caught:
        plan_of(lab_file, "kubernetes.image=mine", 'capacity.order=["block", "g4dn"]', "nodes=99")
    assert [(problem.field, problem.value) for problem in caught.value.problems] == [
        ("capacity.order", "block"),
        ("capacity.order", "block"),
        ("capacity.order", "g4dn"),
    ]


def test_on_a_machine_with_all_nodes_a_deadline_is_checked_against_the_work_and_there_is_nothing_to_choose() -> None:
    spec = {"command": ["true"], "launcher": "none", "capacity": {"deadline": "30h", "work": "20h"}}
    assert any("nothing to choose" in note for note in spotmpi.plan_run(spec)["notes"])
    for work, least in (("20h", "20h"), ("1205m", "1205m"), ("14460m", "241h"), ("14461m", "242h")):
        with pytest.raises(
            InputError, match=rf'^capacity.deadline = \'10 h\': .*: set at least "{least}", or use more'
        ):
            spotmpi.plan_run(spec, ["capacity.deadline=10h", f"capacity.work={work}"])


@pytest.mark.parametrize("before", [[], ["machine-1", "old"]])
def test_the_command_that_goes_on_without_sick_machines_works_as_it_is_printed(
    lab_file: Path, before: list[str]
) -> None:
    """It replaced what the spec avoids already, and had no environment unless `--on` was added."""
    spec = from_values({"image": "pytorch", "program": "digits", "nodes": 2, "kubernetes": {"avoid": before}})
    plan = spotmpi.plan_run(spec, on=Target(str(lab_file)))
    paths = RunPaths(lab_file.parent / "runs" / plan["run"])
    paths.folder.mkdir(parents=True)
    for path, text in ((paths.spec, spec.to_toml()), (paths.plan, json.dumps(plan)), (paths.own, "")):
        path.write_text(text)
    events: list[Any] = [{"event": "submitted"}, {"event": "stopped"}]
    paths.events.write_text("".join(json.dumps({"t": at, **each}) + "\n" for at, each in enumerate(events)))
    attempt: Any = SimpleNamespace(_context=SimpleNamespace(plan={"run": paths.id}))
    remedy = CoordinatedAttempt._remedy(attempt, ["machine-2", "machine-1"])

    assert remedy.startswith("; to go on without: ")
    stop, resume = (shlex.split(each) for each in remedy.partition(": ")[2].split(" && "))
    assert stop == ["spotmpi", "stop", paths.id] and resume[0] == "spotmpi"
    assert invoke(*stop[1:])[0] == 0
    code, out, err = invoke(*resume[1:], "--dry-run", "--json")
    assert code == 0, err
    again = json.loads(out)
    (job,) = (each for each in again["objects"] if each["kind"] == "JobSet")
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    of_nodes = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = of_nodes["nodeSelectorTerms"]
    avoided = [*before, *(each for each in ("machine-1", "machine-2") if each not in before)]
    assert [each["values"] for each in term["matchFields"]] == [[name] for name in avoided]
    assert (again["outputs"], again["namespace"]) == (plan["outputs"], plan["namespace"])
    paths.own.unlink()
    assert "name the image to pull" in invoke(*resume[1:], "--dry-run")[2], "the environment of another user's run"
