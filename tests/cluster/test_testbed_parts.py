"""The parts of the testbed that need neither root nor programs: addresses, image tags, waiting, messages."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import pytest

from tests.testbed import cgroups, images, prerequisites
from tests.testbed.daemon import Daemon, wait_until
from tests.testbed.errors import TestbedError
from tests.testbed.slot import every_slot, take_slot


def test_nodes_and_their_pods_share_a_network_and_no_address() -> None:
    for slot in every_slot():
        network = ipaddress.ip_network(f"{slot.network}.0/24")
        addresses = {slot.gateway, slot.node_address(0), slot.node_address(1)}
        for node in range(2):
            first, last = (int(ipaddress.ip_address(end)) for end in slot.pod_range(node))
            pods = {str(ipaddress.ip_address(number)) for number in range(first, last + 1)}
            assert len(pods) == 100
            assert addresses.isdisjoint(pods)
            addresses |= pods
        assert all(ipaddress.ip_address(address) in network.hosts() for address in addresses)
    assert len({slot.network for slot in every_slot()} | {slot.bridge for slot in every_slot()}) == 2 * len(
        every_slot()
    )


def test_two_clusters_never_get_the_same_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.testbed.slot.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("tests.testbed.slot._LONGEST_FOLDER", 1000)
    first, lock = take_slot()
    second, other_lock = take_slot()
    assert first != second
    assert first.is_taken()
    lock.close()
    assert not first.is_taken()
    assert take_slot()[0] == first
    other_lock.close()


def test_a_folder_too_long_for_sockets_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + "long/" * 20)
    with pytest.raises(TestbedError, match="set XDG_CACHE_HOME to a shorter folder"):
        take_slot()


@pytest.mark.parametrize(
    ("hierarchy", "sign", "setting"),
    [("cpu", "cgroup.procs", "cpu.shares"), (".", "cgroup.controllers", "cpu.weight")],
    ids=["version 1", "version 2"],
)
def test_containers_get_more_time_than_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hierarchy: str, sign: str, setting: str
) -> None:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    group = tmp_path / hierarchy / "cluster"
    group.mkdir(parents=True)
    (tmp_path / hierarchy / sign).touch()
    default = {"cpu.shares": 1024, "cpu.weight": 100}[setting]
    (group / setting).write_text(str(default))
    cgroups.create("cluster")
    assert int((group / setting).read_text()) == 8 * default


def test_an_image_tag_changes_with_any_file_it_is_built_from(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    dockerfile = tmp_path / "own" / "Dockerfile"
    dockerfile.write_text("FROM base\n")
    image = images.Image("own", dockerfile, tmp_path)
    tags = [image.reference()]
    for path in (tmp_path / "own" / "requirements.lock", tmp_path / "shared.py"):
        path.write_text("1\n")
        tags.append(image.reference())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "Dockerfile").write_text("FROM elsewhere\n")
    assert len(set(tags)) == 3
    assert image.reference() == tags[-1]


def test_an_unknown_image_is_refused_by_name() -> None:
    with pytest.raises(TestbedError, match="no image 'nonesuch'"):
        images.find("nonesuch")


def test_all_missing_prerequisites_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(prerequisites, "_SYSTEM_PATH", "/nowhere")
    monkeypatch.setitem(prerequisites.PACKAGES, "containernetworking-plugins", "/nowhere/bridge")
    with pytest.raises(TestbedError) as refused:
        prerequisites.require()
    assert "run the tests as root" in str(refused.value)
    assert "containerd runc conmon containernetworking-plugins iproute2 iptables debootstrap buildah" in str(
        refused.value
    )
    assert "scripts/cluster-packages" in str(refused.value)


def test_waiting_ends_with_the_reason_and_the_end_of_the_log_when_the_program_ends(tmp_path: Path) -> None:
    daemon = Daemon("doomed", ["sh", "-c", "echo no such flag; exit 3"], tmp_path)
    daemon.start()
    with pytest.raises(TestbedError) as failed:
        daemon.wait_until_ready(lambda: "port closed", 20)
    message = str(failed.value)
    assert "doomed is not ready because a program ended: port closed" in message
    assert "doomed ended with 3" in message
    assert "no such flag" in message


def test_waiting_ends_at_its_limit() -> None:
    with pytest.raises(TestbedError, match=r"thing is not ready after 0\.05 s: still red"):
        wait_until("thing", lambda: "still red", 0.05)


def test_a_daemon_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    daemon = Daemon("stubborn", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"], tmp_path)
    daemon.start()
    daemon.wait_until_ready(lambda: "" if "up" in daemon.log.read_text() else "not up", 10)
    pid = daemon.pid
    daemon.stop(limit=0.2)
    assert daemon.pid is None
    assert not Path(f"/proc/{pid}").exists()
