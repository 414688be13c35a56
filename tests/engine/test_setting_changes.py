"""Every change of every setting of the ready stacks, with nodes running and data there, by `spotmpi up`.

Each ends in one of: applied without losing a node or data; refused before anything is touched, with the remedy; asked,
naming what will be lost. A second `up` has nothing to do. docs/tests.md has the outcome of each setting.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.built_stack import BuiltStack
from tests.engine.setting_changes import STACKS, Change, changes, documented

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(600)]
# Of each kind of outcome, and each that once lost something or broke every later `up`.
IN_CI = (
    *("zones=us-east-1b", "second_zone=us-east-1d", "namespace=other", "network.cidr=10.1.0.0/16", "images=chainermn"),
    *("tags={'team':'vision'}", "groups[].type=c6i.2xlarge", "groups[].max=5", "groups[].market=on-demand"),
    *("groups[].disk_gib=101", "groups[].name=other", "groups=removed", "cluster.version=1.35"),
    *("cluster.encrypt_secrets=True", "cluster.system.type=t3.large", "cluster.system.nodes=3"),
    *(
        "storage.one_zone=False",
        "storage=own",
        "storage.backup=True",
        "queueing=on",
        "zones=us-east-1a,us-east-1b,us-east-1c",
    ),
)
NIGHTLY = pytest.mark.nightly("440 of them; 21 of the stack cpu run by day")
SINGLE = [
    pytest.param(stack, each, id=f"{stack}-{each}", marks=() if stack == "cpu" and each.name in IN_CI else NIGHTLY)
    for stack in STACKS
    for each in changes(stack)
]


@pytest.mark.parametrize(("stack", "change"), SINGLE)
def test_a_change_loses_nothing_that_was_not_named(
    built: Callable[[str], BuiltStack], stack: str, change: Change
) -> None:
    assert built(stack).outcome([change]) in documented(change.key)


def test_all_of_the_days_selection_exist() -> None:
    assert len(IN_CI) == 21 and set(IN_CI) <= {each.name for each in changes("cpu")}
