"""The API server alone checks and stores objects as in a cluster, without root and without running anything."""

from __future__ import annotations

import json

import pytest

from tests.testbed.kubernetes import RESTRICTED, Kubernetes
from tests.testbed.objects import SECURITY, pod, pod_spec

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.nightly("tests the test cluster itself, which every other cluster test does too"),
]


def test_a_server_side_dry_run_fills_in_defaults_and_stores_nothing(api_server: Kubernetes) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    output = api_server.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(claim))
    assert json.loads(output)["spec"]["volumeMode"] == "Filesystem"
    assert api_server.get("pvc")["items"] == []


def test_an_unknown_field_is_refused(api_server: Kubernetes) -> None:
    wrong = pod("typo", pod_spec("image", ["true"], nodeSelectors={"a": "b"}))
    refused = api_server.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(wrong))
    assert 'unknown field "spec.nodeSelectors"' in refused.stderr


def test_pod_security_is_enforced_on_a_dry_run_too(api_server: Kubernetes) -> None:
    with api_server.namespace(labels=RESTRICTED) as namespace:
        for user, code in ((1000, 0), (0, 1)):
            security = {**SECURITY, "runAsUser": user}
            tried = json.dumps(pod("tried", pod_spec("image", ["true"], securityContext=security)))
            result = api_server.try_kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=tried)
            assert result.returncode == code, result.stderr
