"""The store unpacks an image once, lends it, and forgets older tags only while no cluster runs."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.slot import take_slot
from tests.testbed.store import REGISTRY, Store
from tests.unit.archives import tar_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.nightly("tests the test cluster itself, which every other cluster test does too"),
]
LAYERS = "store/io.containerd.snapshotter.v1.overlayfs/snapshots"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty store, in a folder short enough for sockets."""
    folder = tempfile.mkdtemp(prefix="s-")
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    yield Store()
    shutil.rmtree(folder)


def archive_of(folder: Path, name: str, content: str) -> Path:
    """Write an image of one layer with one file, `said`, as `docker save` would."""
    layer = tar_of({"said": content.encode()})
    history = {"os": "linux", "architecture": "amd64", "config": {}}
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = json.dumps({**history, "rootfs": {"type": "layers", "diff_ids": [digest]}}).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    path = folder / f"{content}.tar"
    path.write_bytes(tar_of({"config.json": config, "layer.tar": layer, "manifest.json": manifest}))
    return path


def unpacked(store: Store) -> list[str]:
    return sorted(path.read_text() for path in (store.folder / LAYERS).glob("*/fs/said"))


def test_older_tags_are_removed_with_their_layers_unless_a_cluster_runs(store: Store, tmp_path: Path) -> None:
    old, new, other = (f"{REGISTRY}/{name}" for name in ("image:old", "image:new", "other:old"))
    for name, content in ((old, "one"), (new, "two"), (other, "three")):
        store.add(name, archive_of(tmp_path, name, content))
    assert {old, new, other} <= store.names()
    _, lock = take_slot()
    store.forget_older_than([new])
    assert old in store.names()
    lock.close()
    store.forget_older_than([new])
    assert old not in store.names()
    assert {new, other} <= store.names()
    assert unpacked(store) == ["three", "two"]


def test_only_the_unpacked_form_of_a_layer_is_kept(store: Store, tmp_path: Path) -> None:
    store.add(f"{REGISTRY}/image:1", archive_of(tmp_path, f"{REGISTRY}/image:1", "said-once"))
    blobs = (store.folder / "store/io.containerd.content.v1.content/blobs/sha256").iterdir()
    # Configuration and manifest; the layer itself is removed.
    assert len(list(blobs)) == 2
    assert unpacked(store) == ["said-once"]


def test_a_node_gets_links_to_layers_and_databases_of_its_own(store: Store, tmp_path: Path) -> None:
    store.add(f"{REGISTRY}/image:1", archive_of(tmp_path, f"{REGISTRY}/image:1", "lent"))
    node = tmp_path / "node"
    store.lend_to(node)
    lent = list((node / LAYERS).iterdir())
    assert lent
    assert all(path.is_symlink() and path.resolve().parent == store.folder / LAYERS for path in lent)
    for database in (node / "store").glob("*/*.db"):
        assert database.stat().st_nlink == 1
        assert not database.is_symlink()
    shutil.rmtree(node)
    assert unpacked(store) == ["lent"]
