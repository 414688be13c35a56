"""Pod templates of the user's: how they are merged over ours, read, and refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.submit import pod_templates
from spotmpi.core.errors import InputError
from spotmpi.plan import pods
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.templates import Template
from spotmpi.spec.source import from_values
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import of_kind

Object = dict[str, Any]
TARGET = ClusterTarget("training", "image:1", "runs", {}, (), False)
SPEC = from_values({"command": ["x"], "launcher": "none"})


def pod(*templates: Object) -> Object:
    named = tuple(Template(f"{number}.yaml", values) for number, values in enumerate(templates, 1))
    return pods.template(SPEC, ClusterTarget(**{**vars(TARGET), "templates": named}), "run-1")


def spec(**fields: Any) -> Object:
    """A template with these fields of its pods' spec."""
    return {"spec": fields}


def node(**fields: Any) -> Object:
    """A template with these fields of the container that spotmpi starts."""
    return spec(containers=[{"name": "node", **fields}])


def container(result: Object, name: str = "node") -> Object:
    (one,) = [each for each in result["spec"]["containers"] if each["name"] == name]
    return cast(Object, one)


def test_the_later_template_wins_and_what_it_does_not_name_stays() -> None:
    result = pod(
        spec(priorityClassName="low", nodeSelector={"a": "1", "b": "1"}),
        spec(priorityClassName="high", nodeSelector={"b": "2"}),
    )
    assert result["spec"] == {**pod()["spec"], "priorityClassName": "high", "nodeSelector": {"a": "1", "b": "2"}}


def test_named_things_are_merged_by_their_names_and_new_ones_come_after_ours() -> None:
    own, volume = pod(), {"name": "more", "emptyDir": {}}
    watch = {"name": "watch", "image": "watch:1", "volumeMounts": [{"name": "more", "mountPath": "/more"}]}
    utc = {"name": "node", "env": [{"name": "TZ", "value": "UTC"}]}
    result = pod(spec(containers=[utc, watch], volumes=[volume]), node(env=[{"name": "TZ", "value": "CET"}]))
    assert [each["name"] for each in result["spec"]["containers"]] == ["node", "watch"]
    expected = {**container(own), "env": [*container(own)["env"], {"name": "TZ", "value": "CET"}]}
    assert container(result) == expected
    assert result["spec"]["volumes"] == [*own["spec"]["volumes"], volume]


def test_tolerations_are_added_lists_without_names_replaced_and_null_takes_away() -> None:
    annotations = {"annotations": {"karpenter.sh/do-not-disrupt": None}}
    fields = spec(tolerations=[{"key": "mine"}], dnsConfig={"searches": ["example"]}, schedulerName=None)
    result = pod({"metadata": annotations, **fields})
    assert result["spec"]["tolerations"] == [*pod()["spec"]["tolerations"], {"key": "mine"}]
    assert result["spec"]["dnsConfig"]["searches"] == ["example"]
    assert "karpenter.sh/do-not-disrupt" not in result["metadata"]["annotations"]
    assert "schedulerName" not in result["spec"]


def test_a_container_of_a_template_gets_the_restricted_security_context_unless_it_has_one() -> None:
    own = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    watch, sync = {"name": "watch", "image": "w"}, {"name": "sync", "image": "s", "securityContext": own}
    result = pod(spec(containers=[watch], initContainers=[sync]))
    assert container(result, "watch")["securityContext"] == pods.container_security()
    assert result["spec"]["initContainers"][0]["securityContext"] == own


def test_one_template_may_serve_many_plans() -> None:
    values = spec(
        volumes=[{"name": "more", "emptyDir": {}}],
        tolerations=[{"key": "mine"}],
        dnsConfig={"options": [{"name": "ndots"}]},
        readinessGates=[{"conditionType": "ready"}],
    )
    before = copy.deepcopy(values)
    first, second = pod(values, values), pod(values, values)
    result = first["spec"]
    for each in (
        result["volumes"][-1]["emptyDir"],
        result["tolerations"][-1],
        result["dnsConfig"]["options"][0],
        result["readinessGates"][0],
        pod(values)["spec"]["readinessGates"][0],
    ):
        each["changed"] = True
    assert second == pod(values, values) and second != first
    assert values == before


def test_the_problems_of_all_templates_come_at_once() -> None:
    with pytest.raises(InputError) as refused:
        pod({"template": {}, **spec(restartPolicy="Always")}, {"more": {}})
    assert [(problem.value, problem.remedy.split(":")[0]) for problem in refused.value.problems] == [
        ("1.yaml", "unknown key template"),
        ("1.yaml", "must not change spec.restartPolicy, which spotmpi sets"),
        ("2.yaml", "unknown key more"),
    ]


SCALARS = st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["node", "config", "a", "b"])
FIELDS = st.sampled_from(["name", "env", "value", "image", "ports", "mountPath", "labels", "emptyDir", "a", ""])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=8,
)
NAMED: st.SearchStrategy[Any] = st.lists(
    VALUES | st.fixed_dictionaries({"name": SCALARS | st.just([])}, optional={"env": VALUES}), max_size=3
)
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": VALUES,
        "spec": VALUES
        | st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(("initContainers", "volumes", "imagePullSecrets", "tolerations"), NAMED | SCALARS),
                **dict.fromkeys(("affinity", "nodeSelector", "dnsConfig"), VALUES),
            },
        ),
    },
)


@settings(max_examples=100)
@given(st.lists(TEMPLATES, max_size=2))
@example([spec(initContainers=[None])])
@example([spec(initContainers="a")])
def test_whatever_a_template_holds_it_leaves_ours_as_it_is_or_is_refused(templates: list[Object]) -> None:
    before, own = copy.deepcopy(templates), pod()
    try:
        result = pod(*templates)
    except InputError as error:
        assert {problem.field for problem in error.problems} == {"kubernetes.templates"}
    else:
        assert container(result)["command"] == container(own)["command"]
        assert result["spec"]["restartPolicy"] == "Never"
        assert [each for each in result["spec"]["volumes"] if each in own["spec"]["volumes"]] == own["spec"]["volumes"]
        assert result["metadata"]["labels"].items() >= own["metadata"]["labels"].items()
    assert templates == before


def test_a_key_that_yaml_reads_as_no_text_is_refused_by_its_name() -> None:
    with pytest.raises(InputError) as refused:
        pod({1: {}}, {"metadata": {"labels": {True: "x", "a": [{None: 1}]}}}, {"template": {}})  # type: ignore[dict-item]
    assert [(problem.value, problem.remedy) for problem in refused.value.problems] == [
        ("1.yaml", "the key 1 is not text: write it in quotes"),
        ("2.yaml", "the key True is not text: write it in quotes"),
        ("2.yaml", "the key None is not text: write it in quotes"),
        ("3.yaml", "unknown key template: use metadata and spec"),
    ]


@pytest.mark.parametrize(
    "aliases", [[{"hostnames": ["b"]}], [{"ip": "::1"}, {"hostnames": ["b"]}], ["ip", "::1"], [{"ip": ["::1"]}], []]
)
def test_a_list_in_which_not_every_item_has_a_name_is_replaced(aliases: list[Any]) -> None:
    named = [{"ip": "10.0.0.1", "hostnames": ["a"]}]
    result = pod(spec(hostAliases=named), spec(hostAliases=aliases))
    assert result["spec"]["hostAliases"] == (aliases or named)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (spec(restartPolicy="Always"), "must not change spec.restartPolicy, which spotmpi sets: remove it"),
        (spec(terminationGracePeriodSeconds=5), "PeriodSeconds, which spotmpi sets: set checkpoint.grace"),
        (node(command=["sh"]), "must not change spec.containers[node].comm"),
        (spec(containers=None), "must not change spec.containers[node].command"),
        (
            node(env=[{"name": "SPOTMPI_RESTART_COUNT", "value": "7"}]),
            "must not change spec.containers[node].env[SPOTMPI_RESTART_COUNT]",
        ),
        (spec(volumes=[{"name": "config", "emptyDir": {}}]), "must not change spec.volumes[config]"),
        (
            node(volumeMounts=[{"mountPath": "/dev/shm", "name": "config"}]),
            "must not change spec.containers[node].volumeMounts[/dev/shm]",
        ),
        ({"metadata": {"labels": {"spotmpi.dev/run": "x"}}}, "must not change metadata.labels[spotmpi.dev/run]"),
        ({"metadata": {"labels": {"spotmpi.dev/run": None}}}, "must not change metadata.labels[spotmpi.dev/run]"),
        ({"metadata": {"labels": None}}, "must not change metadata.labels[app.kubernetes.io/managed-by]"),
        ({"metadata": {"labels": {"spotmpi.dev/purpose": "x"}}}, "change metadata.labels[spotmpi.dev/purpose]"),
        ({"metadata": {"annotations": {"spotmpi.dev/stop": "x"}}}, "change metadata.annotations[spotmpi.dev/stop]"),
        ({"template": {}}, "unknown key template: use metadata and spec"),
    ],
)
def test_a_template_cannot_change_fields_that_the_run_depends_on(values: Object, message: str) -> None:
    with pytest.raises(InputError) as refused:
        pod(spec(priorityClassName="low"), values)
    text = str(refused.value)
    assert text.startswith("kubernetes.templates = '2.yaml': ") and message in text, text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (spec(nodeSelektor={"a": "b"}), "unknown fields of a pod template: spec.nodeSelektor"),
        (node(imagge="x"), "unknown fields of a pod template: spec.containers[0].im"),
        (spec(priority="high"), "expected `int | null`, got `str` - at `spec.priority`"),
        (spec(initContainers=[{"image": "x"}]), "missing required field `name` - at `spec.initContainers[0]`"),
    ],
)
def test_unknown_fields_of_a_pod_template_are_named_by_path(values: Object, message: str) -> None:
    with pytest.raises(InputError) as refused:
        pod_templates.validate(pod(values), [Template("mine.yaml", values)])
    assert str(refused.value).startswith("kubernetes.templates = 'mine.yaml': ") and message in str(refused.value)


def test_our_own_pod_template_has_the_shape_of_one() -> None:
    pod_templates.validate(pod(), [])


@pytest.fixture
def api(cluster: FakeCluster) -> ClusterApi:
    """A namespace with one ConfigMap."""
    cluster.put(of_kind("ConfigMap", "pods", data={"b.yaml": "spec: {hostname: b}", "a.yaml": "spec: {hostname: a}"}))
    return cluster.api()


def test_templates_are_read_in_the_order_given_and_a_config_map_in_that_of_its_keys(
    tmp_path: Path, api: ClusterApi
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("spec:\n  hostname: file\n")

    result = pod_templates.read([str(path), "configmap:pods"], api)

    assert [template.name for template in result] == [str(path), "configmap:pods/a.yaml", "configmap:pods/b.yaml"]
    assert [template.values["spec"]["hostname"] for template in result] == ["file", "a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read as a text file (No such file or directory); write"),
        (b"\xff", "cannot be read as a text file (the byte 0xff is not UTF-8); write"),
        (b"a: 1\nb: c: d", "is not YAML: mapping values are not allowed here (line 2, column 5)"),
        (b"\x00", "is not YAML: unacceptable character"),
        (b"- a", "is not a pod template"),
        (b"", "is not a pod template"),
    ],
)
def test_a_template_that_cannot_be_read_is_named(
    api: ClusterApi, tmp_path: Path, text: bytes | None, message: str
) -> None:
    path = tmp_path / "pod.yaml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(InputError) as refused:
        pod_templates.read([str(path)], api)
    assert str(path)[-30:] in str(refused.value) and message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_config_map_is_named_with_its_namespace(api: ClusterApi) -> None:
    with pytest.raises(InputError, match="'configmap:none': not found in namespace here"):
        pod_templates.read(["configmap:none"], api)
