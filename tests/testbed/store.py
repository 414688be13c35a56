"""Images unpacked once into a containerd folder that every node of every test cluster starts from."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.testbed.containerd import Containerd
from tests.testbed.slot import cache_folder, every_slot, locked

REGISTRY = "spotmpi.test"
_LAYERS = Path("io.containerd.snapshotter.v1.overlayfs") / "snapshots"
_LAYER_OF_MANIFEST = re.compile(r"containerd\.io/gc\.ref\.content\.l\.\d+=(sha256:[0-9a-f]+)")
_DIGEST_OF_LINE = re.compile(r"^(sha256:[0-9a-f]+)", re.MULTILINE)
PAUSE_IMAGE = f"{REGISTRY}/pause:1"


class Store:
    """The unpacked images of this user; the databases are only opened by one process at a time."""

    def __init__(self) -> None:
        self.folder = cache_folder() / "store"

    def names(self) -> set[str]:
        """Return the names of the images in it."""
        listing = self.folder / "images"
        return set(listing.read_text().split()) if listing.exists() else set()

    def add(self, name: str, archive: Path) -> None:
        """Unpack an image archive as `name`."""
        with self._locked(), self._running() as containerd:
            containerd.ctr("images", "import", archive)
            self._forget_archived_layers(containerd, name)
            self._list(containerd)

    def forget_older_than(self, names: Collection[str]) -> None:
        """Remove the other tags of these images, unless a cluster runs, which may use them."""
        repositories = {name.rpartition(":")[0] for name in names}
        older = {name for name in self.names() - set(names) if name.rpartition(":")[0] in repositories}
        if not older or any(slot.is_taken() for slot in every_slot()):
            return
        with self._locked(), self._running() as containerd:
            digests = containerd.image_digests()
            used = {digest for name, digest in digests.items() if name not in older and not name.startswith("sha256:")}
            # containerd's own side notes every image a second time, under its configuration's digest.
            unused = [name for name, digest in digests.items() if digest not in used]
            containerd.ctr("images", "remove", "--sync", *unused)
            self._list(containerd)

    def lend_to(self, node_folder: Path) -> None:
        """Return a node the images: copies of the databases, and links to the layers, which nobody ever writes."""
        target, source = node_folder / "store", self.folder / "store"
        with self._locked():
            shutil.copytree(
                source, target, ignore=lambda folder, names: names if folder == str(source / _LAYERS) else []
            )
            for layer in (source / _LAYERS).iterdir():
                (target / _LAYERS / layer.name).symlink_to(layer)

    def _list(self, containerd: Containerd) -> None:
        (self.folder / "images").write_text("\n".join(containerd.image_digests()) + "\n")

    def _locked(self) -> contextlib.AbstractContextManager[object]:
        return locked(self.folder / "lock")

    @contextlib.contextmanager
    def _running(self) -> Iterator[Containerd]:
        containerd = Containerd(self.folder, "store-containerd", PAUSE_IMAGE)
        containerd.start()
        try:
            yield containerd
        finally:
            containerd.stop()

    def _forget_archived_layers(self, containerd: Containerd, name: str) -> None:
        """Remove the packed form of the layers; only the unpacked one is ever used, and the disk is short."""
        listing = containerd.ctr("content", "list")
        layers = set(_LAYER_OF_MANIFEST.findall(listing)) & set(_DIGEST_OF_LINE.findall(listing))
        for digest in sorted(layers):
            containerd.ctr("content", "remove", digest)
        # Only a synchronous removal makes containerd collect its garbage before it ends.
        containerd.ctr("images", "tag", "--force", name, f"{name}-discarded")
        containerd.ctr("images", "remove", "--sync", f"{name}-discarded")
