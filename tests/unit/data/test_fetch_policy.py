"""What the network lets the pods of a fetch Job reach."""

from __future__ import annotations

import pytest

from spotmpi.data import fetch_job
from spotmpi.data.remote_source import Order


@pytest.mark.parametrize(
    ("addresses", "ports"),
    [
        (["https://x.org/a", "https://y.org:443/b"], [443]),
        (["http://x.org/a", "https://y.org:8443/b"], [80, 8443]),
    ],
)
def test_its_pods_resolve_names_and_reach_the_ports_of_their_sources_and_no_more(
    addresses: list[str], ports: list[int]
) -> None:
    job = {"metadata": {"name": "fetch", "namespace": "here", "uid": "7"}}
    policy = fetch_job.network_policy(job, [[Order(each, "a", None)] for each in addresses])
    spec = policy["spec"]
    assert spec["podSelector"] == {"matchLabels": {"batch.kubernetes.io/job-name": "fetch"}}
    assert spec["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in spec
    names, sources = spec["egress"]
    assert names == {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    assert [each["port"] for each in sources["ports"]] == ports
    assert {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}} in sources["to"]
