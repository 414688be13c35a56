"""The way to an environment's cluster without a kubeconfig, over https to a server that checks tokens as EKS does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from spotmpi.agent.plan import COORDINATOR
from spotmpi.aws import eks
from spotmpi.aws.errors import CallError, CloudError
from spotmpi.backends import targets
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client import kubeconfig
from spotmpi.backends.kubernetes.client.api import POD, RESYNC, ClusterApi
from spotmpi.backends.kubernetes.client.kubeconfig import EksAccess
from spotmpi.backends.kubernetes.client.view import ClusterView
from spotmpi.core.errors import SpotmpiError
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.cluster.fake_cluster import write_kubeconfig
from tests.cloud.cluster.objects import a_pod
from tests.cloud.cluster.store import Object
from tests.unit.backends.kubernetes.eks_cluster import LAB, NAME, EksCluster, in_another_process
from tests.unit.core.test_environment import OUTPUTS

ELSEWHERE = "arn:aws:eks:us-west-2:999999999999:cluster/spotmpi-lab"


@pytest.fixture
def cluster(account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EksCluster]:
    """The cluster of `LAB`; this machine has neither a kubeconfig nor any program."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(kubeconfig, "open_account", lambda region: account)
    monkeypatch.setattr(cluster_api, "RETRY_DELAY", 0.01)
    in_another_process(monkeypatch)
    cluster = EksCluster(account, tmp_path)
    yield cluster
    cluster.server.close()


def pod(name: str) -> Object:
    return a_pod(name, "Running", {})


def pods(context: str = LAB.context) -> list[str]:
    return [each["metadata"]["name"] for each in ClusterView(context).list(POD, "here")]


def test_an_environments_cluster_is_reached_by_the_aws_credentials_alone(cluster: EksCluster) -> None:
    cluster.server.put(pod("a"))
    assert pods() == ["a"]
    assert cluster.account.requests_of("DescribeCluster") == [{"name": NAME}]


def test_a_backend_of_an_environment_asks_nobody_before_it_is_used(cluster: EksCluster, tmp_path: Path) -> None:
    """A dry run needs no cluster."""
    path = tmp_path / "lab.json"
    path.write_text(json.dumps(OUTPUTS))
    backend = targets.backend(targets.Target(str(path), tmp_path))
    assert isinstance(backend, KubernetesBackend)
    api = backend._api()
    assert (api.context, api.namespace) == (f"eks:{OUTPUTS['cluster_arn']}", "training")
    assert cluster.account.requests == []


def test_after_down_in_the_evening_and_up_in_the_morning_the_new_cluster_is_reached(
    cluster: EksCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubeconfig still has a context of that ARN, with the address and authority of yesterday."""
    yesterday = cluster.account.eks.endpoint
    cluster.server.put(pod("old"))
    assert pods() == ["old"]
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", yesterday, LAB.cluster_arn)))
    cluster.rebuild()
    cluster.server.put(pod("new"))
    in_another_process(monkeypatch)
    assert pods() == ["new"]


def test_in_one_process_a_cluster_that_is_built_anew_is_found_within_minutes(cluster: EksCluster) -> None:
    seconds = [0.0]
    access = EksAccess(eks.Cluster("us-east-1", "123456789012", NAME), lambda: seconds[0])
    old = access.endpoint()
    cluster.rebuild()
    assert access.endpoint() == old
    seconds[0] = 61.0
    cluster.account.refuse("DescribeCluster", "ThrottlingException")
    assert access.endpoint() == old
    cluster.account.refusals.clear()
    assert access.endpoint().server == cluster.account.eks.endpoint != old.server


@pytest.mark.parametrize("context", [ELSEWHERE, "spotmpi-lab"])
def test_a_cluster_of_that_name_in_another_region_or_account_is_never_asked(
    cluster: EksCluster, context: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the current context of a kubeconfig nor one of a similar name is the environment's cluster."""
    elsewhere = cluster.servers[0].address
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", elsewhere, context)))
    cluster.server.put(pod("ours"))
    assert pods() == ["ours"]
    with pytest.raises(SpotmpiError, match="cluster spotmpi-lab in us-west-2 of account 999999999999"):
        pods(f"eks:{ELSEWHERE}")


def test_credentials_of_another_account_reach_no_cluster_of_that_name(cluster: EksCluster) -> None:
    cluster.account.eks.account = cluster.account.sts.account = "999999999999"
    line = (
        "these credentials belong to account 999999999999, but this is cluster spotmpi-lab in us-east-1 of account "
        "123456789012: use a profile or role of account 123456789012"
    )
    for version in ("1.35", ""):
        cluster.account.eks.version = version
        with pytest.raises(SpotmpiError) as refused:
            pods()
        assert str(refused.value) == line
    assert cluster.server.requests == []


@pytest.mark.parametrize(
    ("operation", "code", "line"),
    [
        ("DescribeCluster", "ExpiredTokenException", "the AWS credentials have expired: log in again"),
        ("DescribeCluster", "AccessDeniedException", "eks:DescribeCluster in us-east-1 is not permitted: allow it in"),
        ("DescribeCluster", "ResourceNotFoundException", "of account 123456789012 does not exist: `spotmpi up STACK`"),
    ],
)
def test_a_refusal_of_eks_is_one_line_with_the_remedy(
    cluster: EksCluster, operation: str, code: str, line: str
) -> None:
    cluster.account.refuse(operation, code)
    with pytest.raises(SpotmpiError) as refused:
        pods()
    assert line in str(refused.value) and "\n" not in str(refused.value)
    # Logged in again, the same process goes on.
    cluster.account.refusals.clear()
    assert pods() == []


def test_a_cluster_that_is_being_created_is_waited_for(cluster: EksCluster) -> None:
    cluster.account.eks.status = "CREATING"
    with pytest.raises(SpotmpiError, match=r"cluster spotmpi-lab .* is CREATING: wait until it is ACTIVE"):
        pods()


def test_a_user_without_access_entry_hears_who_needs_one_and_how_to_get_it(cluster: EksCluster) -> None:
    cluster.server.admits = lambda token: False
    line = (
        "could not list Pods: cluster spotmpi-lab in us-east-1 of account 123456789012 has no access entry for "
        "arn:aws:sts::123456789012:x/me: add its role to `cluster.users` of the stack and run `spotmpi up STACK`, or "
        "use a role that is there"
    )
    with pytest.raises(SpotmpiError) as refused:
        pods()
    assert str(refused.value) == line and len(set(cluster.server.tokens)) <= 2
    cluster.account.refuse("GetCallerIdentity", "ExpiredToken")
    with pytest.raises(SpotmpiError, match="could not list Pods: the AWS credentials have expired: log in again"):
        pods()


def test_a_token_is_renewed_before_it_expires_by_a_clock_that_nobody_sets(
    cluster: EksCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, made = [0.0], iter(range(9))
    access = EksAccess(eks.Cluster("us-east-1", "123456789012", NAME), lambda: seconds[0])
    monkeypatch.setattr(eks, "token", lambda aws, cluster: f"token {next(made)}")
    tokens = []
    for moment in (0.0, 599.0, 601.0, 1200.0, 1202.0):
        seconds[0] = moment
        monkeypatch.setattr(time, "time", lambda: 0.0)  # a clock that is set back changes nothing
        tokens.append(asyncio.run(access._bearer()))
    assert tokens == [f"Bearer token {number}" for number in (0, 0, 1, 1, 2)]


def test_a_watch_goes_on_with_a_new_token_after_the_sleep_of_a_machine_at_which_the_clock_stood_still(
    cluster: EksCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = [0.0]
    token = eks.token

    def token_at_that_time(aws: FakeAccount, cluster: eks.Cluster) -> str:
        moment = time.time() + slept[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("botocore.auth.get_current_datetime", lambda: _utc(moment))
            return token(aws, cluster)

    monkeypatch.setattr(eks, "token", token_at_that_time)
    cluster.now = lambda: time.time() + slept[0]
    cluster.server.put(pod("a"))

    async def watch() -> list[str]:
        seen = []
        async for kind, item in ClusterApi(LAB.context, "here").watch(POD):
            assert kind != RESYNC
            seen.append(item["metadata"]["name"])
            slept[0] += 3600.0
            if len(seen) == 2:
                break
            cluster.server.end_watches()
            cluster.server.put(pod("b"))
        return seen

    assert asyncio.run(asyncio.wait_for(watch(), 60)) == ["a", "b"]
    assert len(set(cluster.server.tokens)) == 2 and len(cluster.server.tokens) == 3


@pytest.mark.parametrize("is_transient", [True, False], ids=["no answer", "expired"])
def test_a_watch_outlives_a_renewal_of_credentials_that_fails_for_a_moment_and_ends_where_a_login_is_needed(
    cluster: EksCluster, monkeypatch: pytest.MonkeyPatch, is_transient: bool
) -> None:
    token, calls = eks.token, []
    failure = CallError("sts: no answer", "no answer") if is_transient else CloudError("the AWS login has expired")

    def renewed(aws: FakeAccount, cluster: eks.Cluster) -> str:
        calls.append(cluster)
        if len(calls) == 2:
            raise failure
        return token(aws, cluster)

    monkeypatch.setattr(eks, "token", renewed)
    monkeypatch.setattr(kubeconfig, "_TOKEN_LIFETIME", -1.0)  # a new token for each request
    cluster.server.put(pod("a"))

    async def watch() -> list[str]:
        seen: list[str] = []
        async for kind, item in ClusterApi(LAB.context, "here").watch(POD):
            seen += [item["metadata"]["name"]] if kind != RESYNC else []
            if len(seen) == 2:
                break
            if kind == RESYNC:
                cluster.server.put(pod("b"))
            else:
                cluster.server.end_watches()
        return seen

    if is_transient:
        assert asyncio.run(asyncio.wait_for(watch(), 60)) == ["a", "b"]
    else:
        with pytest.raises(SpotmpiError, match="the AWS login has expired"):
            asyncio.run(asyncio.wait_for(watch(), 60))


def _utc(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC).replace(tzinfo=None)


def test_eks_takes_no_token_of_another_cluster_key_or_time(cluster: EksCluster) -> None:
    """The double is as strict as the authenticator of EKS."""
    account, now = cluster.account, time.time()
    ours = "Bearer " + eks.token(account, eks.Cluster("us-east-1", "123456789012", NAME))
    assert account.eks.admits(ours, NAME, now) and account.eks.admits(ours, NAME, now + 890)
    assert not account.eks.admits(ours, NAME, now + 910)
    assert not account.eks.admits(ours, "spotmpi-other", now)
    assert not account.eks.admits(ours + "=", NAME, now) and not account.eks.admits("Bearer t", NAME, now)
    other_region = "Bearer " + eks.token(account, eks.Cluster("us-west-2", "123456789012", NAME))
    assert not account.eks.admits(other_region, NAME, now)


def test_a_configured_endpoint_of_sts_signs_no_token(cluster: EksCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_STS_REGIONAL_ENDPOINTS", "legacy")
    bearer = "Bearer " + eks.token(cluster.account, eks.Cluster("us-east-1", "123456789012", NAME))
    assert cluster.account.eks.admits(bearer, NAME, time.time())


def test_a_shell_opens_by_a_kubeconfig_of_its_own(
    cluster: EksCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))
    backend = KubernetesBackend(tmp_path, LAB.context, "training")
    monkeypatch.setattr("spotmpi.backends.kubernetes.fault_injection.pod_of", _pod)
    program, option, path, *rest = backend.shell("run-1", COORDINATOR)
    assert (program, option, rest[:3]) == ("kubectl", "--kubeconfig", ["exec", "--namespace", "training"])
    config = yaml.safe_load(Path(path).read_text())
    assert config["clusters"][0]["cluster"]["server"] == cluster.account.eks.endpoint
    assert config["users"][0]["user"]["exec"]["args"] == ["kubeconfig", LAB.cluster_arn, "--token"]
    assert Path(path).stat().st_mode & 0o777 == 0o600


async def _pod(*_: object) -> dict[str, dict[str, str]]:
    return {"metadata": {"name": "node"}}
