"""The Kubernetes objects of a run: whole plans against golden files, and what must hold for every plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml

from spotmpi.agent import protocol
from spotmpi.core import archives, names
from spotmpi.core.environment import NodeGroup
from spotmpi.core.errors import UnreadableRun
from spotmpi.plan import cluster_plan, manifests, pods
from spotmpi.plan.cluster import ClusterTarget, in_order, on_groups
from spotmpi.plan.cluster_plan import spec_of
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.plan.templates import Template
from spotmpi.plan.volume_pod import Volume
from spotmpi.spec.source import from_values

Golden = Callable[[str, str], None]

SMALL: dict[str, Any] = {"image": "chainermn", "program": "digits", "nodes": 2}
PLAIN: dict[str, Any] = {"command": ["sh", "-c", "echo $RANK"], "launcher": "none", "nodes": 4}
FULL: dict[str, Any] = {
    "name": "SSD 300 / VOC",
    "image": "pytorch",
    "program": "ssd",
    "args": ["--epochs", "2"],
    "nodes": 8,
    "slots": 4,
    "launcher": "torchrun",
    "data": "/spotmpi/volume/voc",
    "env": {"OWN": "a 'b' $c"},
    "nccl": {"DEBUG": "INFO"},
    "resources": {"cpu": 4, "memory": "7.5Gi", "gpu": 1},
    "checkpoint": {"every": "5m", "keep": 2, "path": "/spotmpi/volume/kept", "grace": "100s", "memory": "2m"},
    "limits": {"start": "30m", "run": "2h", "no_progress": "5m", "failures": 1, "interruptions": 7},
    "kubernetes": {
        "node_selector": {"zone": "a"},
        "tolerations": [{"key": "spot"}, {"key": "team", "value": "vision", "effect": "NoSchedule"}],
        "labels": {"team": "vision"},
        "secrets": ["tokens"],
        "pull_secrets": ["registry"],
        "queue": "gpus",
        "shm": "8Gi",
        "mounts": [
            {"path": "/weights", "claim": "weights", "read_only": True},
            {"path": "/scratch", "empty": "50Gi"},
            {"path": "/etc/team", "config_map": "team"},
            {"path": "/etc/team-keys", "secret": "team-keys"},
        ],
        "secret_env": {"HF_TOKEN": "hugging-face/token"},
    },
    "env_passthrough": ["WANDB_API_KEY"],
}
TEMPLATES = (
    Template(
        "pod.yaml",
        {
            "metadata": {"annotations": {"team": "vision", "karpenter.sh/do-not-disrupt": None}},
            "spec": {
                "priorityClassName": "low",
                "initContainers": [{"name": "warm", "image": "warm:1", "restartPolicy": "Always"}],
                "containers": [{"name": "node", "env": [{"name": "TZ", "value": "UTC"}]}],
                "tolerations": [{"key": "reserved", "operator": "Exists"}],
            },
        },
    ),
    Template(
        "configmap:pods/late",
        {
            "kind": "Pod",
            "spec": {
                "priorityClassName": "high",
                "initContainers": [{"name": "warm", "image": "warm:2"}],
                "containers": [
                    {
                        "name": "node",
                        "resources": {"limits": {"memory": "40Gi"}},
                        "env": [{"name": "TZ", "value": "CET"}],
                    }
                ],
            },
        },
    ),
)
TARGET = ClusterTarget("training", "registry/image@sha256:0", "runs", {}, (), False)
NODES = ClusterTarget(
    "training", "registry/image@sha256:0", None, {"group": "gpu-a"}, ({"key": "gpu"},), True, TEMPLATES
)
ALONE = replace(TARGET, job_per_node=True)
Target = ClusterTarget | list[NodeGroup]


def submission(run: str = "digits-1", forward: Sequence[str] = ()) -> Submission:
    keys = {"id": "<id>", "host_key": "<key>", **{pods.forwarded_key(name): "<value>" for name in forward}}
    return Submission(run, "ann", keys, {"pod.tar.gz": b"code"}, {"program": "digits"}, rates={"g5": 4.1})


def plan(values: dict[str, Any], target: Target = TARGET, run: str = "digits-1") -> list[dict[str, Any]]:
    """A plan on a target, or on whole nodes of groups."""
    spec = from_values(values)
    if isinstance(target, list):
        base = replace(TARGET, exclusive=True, egress_denied=True, placement_account="mover")
        several = spec.capacity.order or spec.capacity.deadline
        target = (in_order if several else on_groups)(base, target)
    cpus = on_groups(replace(TARGET, egress_denied=True), [CPUS])
    workers = [replace(cpus, image=each.image or cpus.image) for each in (spec.stream.roles if spec.stream else ())]
    return kubernetes_plan(spec, target, submission(run, spec.env_passthrough), workers)


def values_of(value: Any, key: str) -> Iterator[Any]:
    """Every value of *key*, however deep."""
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        if name == key:
            yield item
        if isinstance(item, dict | list):
            yield from values_of(item, key)


GROUP = NodeGroup.model_validate(
    {
        **{"name": "g5", "zone": "us-east-1a", "type": "g5.12xlarge", "market": "spot", "gpus": 4, "vcpus": 48},
        **{
            "memory_mib": 196608,
            "allocatable_mib": 190000,
            "disk_gib": 100,
            "disk_throughput": 125,
            "public_address": True,
        },
        **{"min": 0, "max": 8, "placement_group": True, "efa_interfaces": 0},
        "labels": {"spotmpi.dev/group": "g5", "nvidia.com/gpu.present": "true"},
        "taint": {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    }
)
CPUS = GROUP.model_copy(update={"name": "cpus", "gpus": 0, "labels": {"spotmpi.dev/group": "cpus"}})
LIKE = GROUP.model_copy(
    update={"name": "g6", "vcpus": 32, "labels": {"spotmpi.dev/group": "g6", "nvidia.com/gpu.present": "true"}}
)
WITH_EFA = GROUP.model_copy(update={"type": "p4d.24xlarge", "efa_interfaces": 4})
ON_GROUPS = {**SMALL, "slots": 4, "resources": {"gpu": 1, "cpu": 2}}
POOL: dict[str, Any] = {
    "name": "scan",
    "launcher": "pool",
    "command": ["python3", "scan.py"],
    "pool": {"count": 8, "cpu": 2, "memory": "4Gi", "gpu": 1},
    "limits": {"run": "2h", "interruptions": 7},
    "kubernetes": {"queue": "gpus", "labels": {"team": "vision"}},
}
STAGES: dict[str, Any] = {
    "command": ["python3", "-m", "spotmpi.streams.rank", "predict", "flow:predict"],
    "files": ["/home/ann/flow.py"],
    "stream": {
        "source": "s3://set/*.parquet",
        "batch": 4096,
        "last_batch": "keep",
        "prepare": "flow:prepare",
        "postprocess": "flow:postprocess",
        "workers": {"count": 4},
        "postprocess_workers": {"count": 2, "cpu": 3, "memory": "8Gi", "image": "registry/video:1"},
    },
}
STREAM: dict[str, Any] = {
    "name": "train",
    "command": ["python3", "train.py"],
    "files": ["/home/ann/train.py"],
    "nodes": 2,
    "slots": 4,
    "resources": {"gpu": 1, "cpu": 2},
    "stream": {
        "source": "s3://set/*.parquet",
        "batch": 4096,
        "workers": {"count": 16, "cpu": "1500m", "memory": "4Gi"},
    },
    "limits": {"interruptions": 7},
}
DEADLINE = "2027-01-31T18:00+01:00"
CASES: dict[str, tuple[dict[str, Any], Target]] = {
    "stream": (STREAM, [GROUP]),
    "stages": (STAGES, TARGET),
    "small": (SMALL, TARGET),
    "job-per-node": ({**PLAIN, "limits": {"failures": 3}}, ALONE),
    "standby": ({**PLAIN, "standby": 2, "limits": {"failures": 3}}, ALONE),
    "pool": (POOL, TARGET),
    "plain": (PLAIN, TARGET),
    "full": (FULL, NODES),
    "one-group": (ON_GROUPS, [GROUP]),
    "efa": (ON_GROUPS, [WITH_EFA]),
    "two-groups": ({**ON_GROUPS, "nodes": 1}, [GROUP, LIKE]),
    "in-order": ({**ON_GROUPS, "capacity": {"order": ["g5", "g6"], "patience": "5m"}}, [GROUP, LIKE]),
    "by-deadline": ({**ON_GROUPS, "capacity": {"deadline": DEADLINE, "work": "16h", "budget": 90}}, [GROUP, LIKE]),
}
every_plan = pytest.mark.parametrize(("values", "target"), CASES.values(), ids=CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_plan_equals_its_golden_file(name: str, golden: Golden) -> None:
    objects = plan(*CASES[name])
    for part in objects:
        if part["kind"] == "ConfigMap":
            part["data"] |= {"boot.py": "<boot.py>", "unpack.py": "<unpack.py>"}
            part["data"]["plan.json"] = json.loads(part["data"]["plan.json"])
    golden(f"plan-{name}.yaml", yaml.safe_dump_all(objects, sort_keys=True, width=120))


def test_the_agent_plan_has_the_image_that_a_template_sets() -> None:
    other = Template("pod.yaml", {"spec": {"containers": [{"name": "node", "image": "other:1"}]}})
    jobset, config, *_ = plan(PLAIN, replace(TARGET, templates=(other,)))
    assert [each["image"] for each in cluster_plan.pod_template(jobset)["spec"]["containers"]] == ["other:1"]
    assert json.loads(config["data"]["plan.json"])["work"]["container"] == "other:1"


def test_the_pod_template_of_workers_is_in_the_plan_of_a_pool_alone() -> None:
    objects = plan(POOL)
    assert cluster_plan.worker_templates(objects) == [objects[-1]["spec"]["template"]]
    assert cluster_plan.worker_templates(plan(SMALL)) == []

    preparing, postprocessing = (each["spec"]["containers"][0] for each in cluster_plan.worker_templates(plan(STAGES)))
    assert preparing["image"] == TARGET.image and postprocessing["image"] == "registry/video:1"
    assert postprocessing["resources"]["limits"]["memory"] == "8Gi"


def test_data_that_is_staged_in_memory_has_a_volume_there() -> None:
    def volumes(**data: str) -> list[dict[str, Any]]:
        pod = cluster_plan.pod_template(plan({**SMALL, "data": {"path": "/spotmpi/volume/voc", **data}})[0])["spec"]
        return [volume for volume in pod["volumes"] if volume["name"] == "memory"]

    assert volumes() == volumes(stage="node") == []
    assert volumes(stage="memory") == [{"name": "memory", "emptyDir": {"medium": "Memory"}}]


def test_pods_that_share_nodes_know_their_groups_and_not_their_size() -> None:
    target = on_groups(replace(TARGET, exclusive=False), [GROUP, WITH_EFA.model_copy(update={"name": "p4"})])
    assert (target.node_cpus, target.efa, len(target.one_of)) == (None, 0, 2)
    assert dict(target.machine) == {
        **{"zone": "us-east-1a", "node_group": "g5 or p4", "type": "g5.12xlarge or p4d.24xlarge", "market": "spot"},
        "placement_group": "yes",
    }


def test_no_pod_gets_a_node_that_is_avoided_in_any_of_its_groups() -> None:
    def terms(target: ClusterTarget, **kubernetes: Any) -> Any:
        pod = cluster_plan.pod_template(plan({**SMALL, "kubernetes": kubernetes}, target)[0])["spec"]
        affinity = pod.get("affinity", {}).get("nodeAffinity", {})
        return affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")

    names = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("ip-1", "ip-2")]
    assert terms(TARGET) is None
    assert terms(TARGET, avoid=["ip-1", "ip-2"]) == [{"matchFields": names}]
    own = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]}
    affinity = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": own}}}
    with_own = replace(TARGET, templates=(Template("pod.yaml", {"spec": affinity}),))
    assert terms(with_own, avoid=["ip-1", "ip-2"]) == [{**own["nodeSelectorTerms"][0], "matchFields": names}]
    for wrong in ("x", {"nodeAffinity": 1}, {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [1]}}):
        refused = replace(TARGET, templates=(Template("pod.yaml", {"spec": {"affinity": wrong}}),))
        assert next(values_of(plan({**SMALL, "kubernetes": {"avoid": ["ip-1"]}}, refused)[0], "affinity")) == wrong
    both = on_groups(TARGET, [GROUP, LIKE])
    assert [each["matchFields"] for each in terms(both, avoid=["ip-1", "ip-2"])] == [names, names]
    assert [each["matchExpressions"] for each in terms(both, avoid=["ip-1"])] == [
        each["matchExpressions"] for each in terms(both)
    ]


@pytest.mark.parametrize(("exclusive", "groups"), [(False, [WITH_EFA]), (True, [WITH_EFA, LIKE])])
def test_pods_request_no_efa_on_shared_nodes_or_where_some_nodes_lack_it(
    exclusive: bool, groups: list[NodeGroup]
) -> None:
    text = json.dumps(plan(ON_GROUPS, on_groups(replace(TARGET, exclusive=exclusive), groups)))
    assert pods.EFA not in text and "FI_PROVIDER" not in text


@every_plan
def test_the_same_arguments_give_the_same_plan_and_no_object_twice(values: dict[str, Any], target: Target) -> None:
    first, second = plan(values, target), plan(values, target)
    assert first == second
    identities: set[int] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict | list):
            assert id(value) not in identities, value
            identities.add(id(value))
            for item in value.values() if isinstance(value, dict) else value:
                walk(item)

    walk(first)


@every_plan
def test_pods_refer_only_to_objects_of_the_plan(values: dict[str, Any], target: Target) -> None:
    jobset, *parts = plan(values, target)
    config_map = next(part for part in parts if part["kind"] == "ConfigMap")
    templates, mounts_of = list(values_of(jobset, "volumes")), list(values_of(jobset, "volumeMounts"))
    assert len(templates) == len(mounts_of) == len(jobset["spec"]["replicatedJobs"])
    for template, mounts in zip(templates, mounts_of, strict=True):
        assert {mount["name"] for mount in mounts} == {volume["name"] for volume in template}
        for mount in mounts:
            if "subPath" in mount:
                assert mount["subPath"] in config_map["data"]


def rule_for(jobset: dict[str, Any], reason: str, message: str) -> str:
    """What JobSet does with a failed Job: the first rule that fits."""
    for rule in jobset["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns")
        if reason in rule.get("onJobFailureReasons", [reason]) and (
            patterns is None or any(re.fullmatch(pattern, message) for pattern in patterns)
        ):
            return str(rule["action"])
    return "RestartJobSet"


MESSAGE = "Container node for pod here/x-node-0-0-abcde failed with exit code %d matching FailJob rule at index 0"


@pytest.mark.parametrize(
    ("reason", "message", "action"),
    [
        ("PodFailurePolicy", MESSAGE % protocol.NOT_RETRYABLE, "FailJobSet"),
        ("PodFailurePolicy", MESSAGE % protocol.INTERRUPTED, "RestartJobSetAndIgnoreMaxRestarts"),
        (
            "PodFailurePolicy",
            "Pod here/x has condition DisruptionTarget matching FailJob rule at index 1",
            "RestartJobSetAndIgnoreMaxRestarts",
        ),
        ("PodFailurePolicy", MESSAGE.replace("x-node", "exit-code-78-node") % 75, "RestartJobSetAndIgnoreMaxRestarts"),
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit", "RestartJobSet"),
        ("DeadlineExceeded", "Job was active longer than specified deadline", "RestartJobSet"),
    ],
)
def test_each_exit_matches_its_failure_rule(reason: str, message: str, action: str) -> None:
    assert rule_for(plan(SMALL)[0], reason, message) == action
    alone = action.replace("RestartJobSet", "RestartJob")
    assert rule_for(plan(SMALL, ALONE)[0], reason, message) == alone


def test_a_run_has_as_many_pods_where_each_node_has_a_job() -> None:
    assert cluster_plan.pod_count(plan(PLAIN)[0]) == cluster_plan.pod_count(plan(PLAIN, ALONE)[0]) == 4


def test_the_sample_that_asks_whether_jobs_are_restarted_alone_has_the_rules_of_such_a_run() -> None:
    sample, own = manifests.restart_sample("here", "x-1"), plan(PLAIN, ALONE)[0]
    assert sample["spec"]["failurePolicy"]["rules"] == own["spec"]["failurePolicy"]["rules"]


def test_the_jobset_carries_its_spec() -> None:
    assert spec_of(plan(FULL, NODES)[0]) == from_values(FULL)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (
            None,
            "JobSet digits-1 has no annotation spotmpi.dev/spec; "
            "`kubectl describe jobset digits-1` shows what created it",
        ),
        ("{", "annotation spotmpi.dev/spec of JobSet digits-1 is not JSON: Expecting property name enclosed in double"),
        ("[" * 10**5, "annotation spotmpi.dev/spec of JobSet digits-1 is not JSON: maximum recursion depth exceeded"),
        (
            '{"nodes": "two", "limits": {"colour": "blue"}}',
            "this version cannot read JobSet digits-1 (nodes: write a number of nodes such as 2, or all "
            "that the run may have, such as [2, 4]; "
            "limits.colour: Extra inputs are not permitted); upgrade spotmpi",
        ),
    ],
)
def test_a_jobset_without_a_spec_that_this_version_reads_is_refused_with_the_reason(
    annotation: str | None, message: str
) -> None:
    jobset = plan(SMALL)[0]
    annotations = jobset["metadata"]["annotations"]
    del annotations[cluster_plan.ANNOTATION_SPEC]
    if annotation is not None:
        annotations[cluster_plan.ANNOTATION_SPEC] = annotation
    with pytest.raises(UnreadableRun) as refused:
        spec_of(jobset)
    assert str(refused.value).startswith(message)


def test_the_run_volume_of_a_jobset_is_its_claim_with_what_lets_another_pod_mount_it() -> None:
    """Policies may ask for labels, and an image may have one architecture; the reader needs no GPU."""
    selector = {"kubernetes.io/arch": "amd64", "gpu": "l4"}
    kubernetes = {"pull_secrets": ["registry", "other"], "tolerations": [{"key": "team", "value": "a"}]}
    more = {"kubernetes": {**kubernetes, "labels": {"team": "vision"}, "node_selector": selector}}
    jobset = plan({**SMALL, **more, "resources": {"gpu": 1}})[0]
    assert cluster_plan.run_volume(jobset) == Volume(
        "runs",
        "registry/image@sha256:0",
        ("registry", "other"),
        ({"key": "team", "value": "a", "operator": "Equal"},),
        (("team", "vision"),),
        (("kubernetes.io/arch", "amd64"),),
    )
    assert cluster_plan.run_volume(plan(SMALL)[0]) == Volume("runs", "registry/image@sha256:0")
    assert cluster_plan.run_volume(plan(SMALL, NODES)[0]) is None, "a run without one keeps its records on its nodes"
    pod = cluster_plan.pod_template(jobset)["spec"]
    pod["volumes"] = None
    assert cluster_plan.run_volume(jobset) is None


def test_the_secret_of_a_plan_names_the_variables_that_it_forwards() -> None:
    forwarding = plan({**SMALL, "env_passthrough": ["WANDB_API_KEY", "TOKEN"]})
    assert cluster_plan.forwarded_variables(forwarding) == ["WANDB_API_KEY", "TOKEN"]
    assert cluster_plan.forwarded_variables(plan(SMALL)) == []


def test_with_shared_keys_the_pods_take_the_keys_of_another_secret_and_nothing_else_changes() -> None:
    objects = plan(SMALL)
    before = json.dumps(objects)

    shared = manifests.with_shared_keys(objects, "runs-keys")

    assert json.dumps(objects) == before
    expected = [each for each in objects if each["kind"] != "Secret"]
    volumes = cluster_plan.pod_template(expected[0])["spec"]["volumes"]
    (keys,) = [volume for volume in volumes if volume["name"] == pods.KEYS]
    files = ("id", "id.pub", "authorized_keys", "ca.pem", "cert.pem", "key.pem")
    items = [{"key": name, "path": name} for name in files]
    keys["secret"] = {**keys["secret"], "secretName": "runs-keys", "items": items, "optional": True}
    assert shared == expected


def test_the_longest_run_id_gives_names_that_kubernetes_takes() -> None:
    run = "a" * 40
    (jobset, *parts) = plan({**PLAIN, "nodes": 1000}, run=run)
    hosts = json.loads(next(part for part in parts if part["kind"] == "ConfigMap")["data"]["plan.json"])["hosts"]
    hosts += [names.pod_host(run, 999, job_per_node=True), names.standby_host(run, 999)]
    for name in [jobset["metadata"]["name"], *(part["metadata"]["name"] for part in parts), *hosts]:
        assert len(name) <= 63 - len("-abcde") and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_archives_depend_on_names_and_contents_alone() -> None:
    files = [archives.Member("b.py", b"two"), archives.Member("a/a.py", b"one")]
    assert archives.archive(files) == archives.archive(reversed(files))
    assert archives.archive(files) != archives.archive([files[0], archives.Member("a/a.py", b"One")])
    assert archives.archive(files) != archives.archive([files[0], archives.Member("a/a.py", b"one", executable=True)])


def test_the_agents_code_fits_a_config_map_and_imports_nothing_outside_it() -> None:
    packed = archives.agent_archive()
    assert len(packed) < archives.LARGEST
    assert packed == archives.agent_archive()
