"""Settings that a built environment keeps, and updates that are refused because they change one."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from infra import fixed_settings
from infra.fixed_settings import as_tag, of_network, of_storage, require_same
from tests.infra.mock_engine import run, settings_of

BUILT = of_network(settings_of("lab"))


def test_network_and_file_system_carry_what_they_keep() -> None:
    kept = "cluster.encrypt_secrets=false namespace=training network.cidr=10.0.0.0/16 network.private=false"
    recording = run("lab")
    assert recording.one("Vpc").inputs["tags"]["spotmpi:fixed"] == f"{kept} second_zone=us-east-1b zones.0=us-east-1a"
    storage = recording.one("aws:efs/fileSystem:FileSystem")
    assert storage.inputs["tags"]["spotmpi:fixed"] == "storage.one_zone=true zones.0=us-east-1a"
    # Otherwise the engine would replace them, and call no hook before an update.
    assert (recording.one("Vpc").ignore_changes, storage.ignore_changes) == (
        ("cidrBlock",),
        ("availabilityZoneName",),
    )


def test_a_tag_with_the_longest_values_is_within_the_limit_of_aws() -> None:
    long = settings_of("lab", namespace="a" * 16, network={"cidr": "192.168.100.0/24", "private": True})
    assert len(as_tag({**of_network(long), "zones.0": "ap-southeast-2a", "second_zone": "ap-southeast-2b"})) <= 256


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"zones": ["us-east-1b", "us-east-1a"]}, "spotmpi:zones.0 = us-east-1b (built with us-east-1a)"),
        ({"second_zone": "us-east-1d"}, "spotmpi:second_zone = us-east-1d (built with us-east-1b)"),
        ({"network": {"cidr": "10.1.0.0/16"}}, "spotmpi:network.cidr = 10.1.0.0/16 (built with 10.0.0.0/16)"),
        ({"namespace": "runs"}, "spotmpi:namespace = runs (built with training)"),
    ],
)
def test_a_changed_setting_is_refused_with_what_was_built(values: dict[str, Any], refused: str) -> None:
    with pytest.raises(pulumi.RunError) as error:
        require_same(BUILT, of_network(settings_of("lab", **values)))
    assert refused in str(error.value) and "`spotmpi down`" in str(error.value)


@pytest.mark.parametrize(
    "values", [{"network": {"private": True}}, {"cluster": {"encrypt_secrets": True}}], ids=["private", "encrypted"]
)
def test_what_goes_one_way_is_allowed_this_way_and_refused_the_other(values: dict[str, dict[str, bool]]) -> None:
    changed = of_network(settings_of("lab", **values))
    require_same(BUILT, changed)
    with pytest.raises(pulumi.RunError, match=r"= false \(built with true\)"):
        require_same(changed, BUILT)


def test_the_zone_of_regional_storage_is_free() -> None:
    regional = of_storage(settings_of("p3-data", storage={"one_zone": False}))
    require_same(regional, of_storage(settings_of("p3-data", zones=["us-east-1b"], storage={"one_zone": False})))
    with pytest.raises(pulumi.RunError, match=r"storage.one_zone = true \(built with false\)"):
        require_same(regional, of_storage(settings_of("p3-data")))


def test_a_tag_is_read_as_it_was_written() -> None:
    assert fixed_settings._tag({"tags": {"spotmpi:fixed": as_tag(BUILT)}}) == BUILT
    assert fixed_settings._tag({"tags": {"Name": "lab"}}) == fixed_settings._tag(None) == {}
