"""The facts about instance types: in step with their source, and right where an environment relies on them."""

from __future__ import annotations

import json
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from moto import mock_aws

from infra.ci import instance_types
from infra.instance_types import TABLE, catalog
from tests.tools import REPOSITORY


def script() -> ModuleType:
    """scripts/instance-types as a module."""
    loader = SourceFileLoader("instance_types_script", str(REPOSITORY / "scripts" / "instance-types"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_table_is_up_to_date_and_names_its_source() -> None:
    text = (REPOSITORY / "infra" / "instance_types.json").read_text(encoding="utf-8")
    assert script().table() == text
    assert "DescribeInstanceTypes" in json.loads(text)["source"]


def test_a_type_has_its_vcpus_gpus_and_adapters() -> None:
    expected = {
        "g4dn.xlarge": (4, 1, 0),
        "p3.2xlarge": (8, 1, 0),
        "p3.16xlarge": (64, 8, 0),
        "g5.8xlarge": (32, 1, 1),
        "p4d.24xlarge": (96, 8, 4),
        "c6i.xlarge": (4, 0, 0),
    }
    kinds = {name: catalog()[name] for name in expected}
    assert {name: (kind.vcpus, kind.gpus, kind.efa_interfaces) for name, kind in kinds.items()} == expected


def test_families_of_eks_gpu_image_of_amd_and_of_graviton_are_known() -> None:
    """The GPU families are those of the EKS user guide, ml-eks-optimized-ami."""
    families = {name.split(".")[0] for name in catalog()}
    assert {"g7e", "gr6", "gr6f", "g6f", "p6-b300", "p6-b200", "g5g", "c6a", "c7a", "m6a", "c7g", "t4g"} <= families
    assert catalog()["g6f.large"].gpus == 1  # EC2 counts its fraction of a GPU as 0
    assert catalog()["c7g.xlarge"].arm and not catalog()["c7a.xlarge"].arm


def test_pods_of_a_machine_with_many_network_cards_use_the_first() -> None:
    """EKS's list, misc/eni-max-pods.txt of the VPC CNI, has 100 for p5.48xlarge."""
    assert catalog()["p5.48xlarge"].pods == 2 * 49 + 2


@mock_aws
def test_a_type_that_the_table_lacks_is_added_as_ec2_describes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(TABLE.read_text(encoding="utf-8"))
    expected = document["types"].pop("g7e.2xlarge")
    table = tmp_path / "instance_types.json"
    table.write_text(json.dumps(document), encoding="utf-8")
    assert instance_types.main(["g7e.2xlarge", "x8g.large", "--region", "us-east-1"], table) == 0
    added = json.loads(table.read_text(encoding="utf-8"))["types"]
    assert added["g7e.2xlarge"] == expected and added["x8g.large"]["arm"]
    assert set(added) == {*document["types"], "g7e.2xlarge", "x8g.large"}
    assert "g7e.2xlarge, x8g.large" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("z9.large", "EC2 has no instance type z9.large in us-east-1: check the name, or set --region"),
        ("trn1.2xlarge", "trn1.2xlarge: environments run virtual machines with NVIDIA GPUs or none"),
        ("c7g.metal", "c7g.metal: environments run virtual machines"),
    ],
)
@mock_aws
def test_a_type_that_can_not_be_added_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, remedy: str
) -> None:
    table = tmp_path / "instance_types.json"
    table.write_text(TABLE.read_text(encoding="utf-8"), encoding="utf-8")
    assert instance_types.main(["x8g.large", name, "--region", "us-east-1"], table) == 1
    assert remedy in capsys.readouterr().err
    assert table.read_text(encoding="utf-8") == TABLE.read_text(encoding="utf-8")


def test_gpu_images_exist_for_every_gpu_type_but_p2() -> None:
    without = {name.split(".")[0] for name, kind in catalog().items() if kind.gpus and not kind.gpu_ami}
    assert without == {"p2"}


def test_burstable_types_join_no_cluster_placement_group() -> None:
    assert not [name for name, kind in catalog().items() if name.startswith("t3.") and kind.cluster_placement]


def test_pods_per_node_depend_on_its_addresses_up_to_eks_limit() -> None:
    expected = {"t3.medium": 17, "g4dn.xlarge": 29, "p3.2xlarge": 58, "m5.24xlarge": 250}
    assert {name: catalog()[name].pods for name in expected} == expected


def test_pods_get_less_than_a_nodes_memory() -> None:
    expected = {"g4dn.xlarge": 15454, "g5.xlarge": 15135, "p3.2xlarge": 60495, "t3.medium": 3490}
    assert {name: catalog()[name].allocatable_mib for name in expected} == expected


def test_warm_addresses_fit_on_one_interface_of_every_type_that_runs_jobs() -> None:
    small = [name for name, kind in catalog().items() if kind.gpus and kind.addresses_per_interface < 1 + 8 + 1]
    assert small == []
