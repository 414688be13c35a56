"""The facts about instance types: in step with their source, and right where an environment relies on them."""

import json
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

from infra.instance_types import catalog
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
