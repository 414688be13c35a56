"""Runs and data sets in a home folder as clusters have it: libfuse keeps removed files that are open, as NFS does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.agent.files import remove_folder
from tests.command_line import spotmpi_process

pytestmark = pytest.mark.slurm

SETS = """
import spotmpi

@spotmpi.dataset(workers=2)
def ratings(raw: spotmpi.Source):
    return {"stars": raw["stars"]}

if __name__ == "__main__":
    import sets
    print(sets.ratings("raw/*.csv").rows)
"""


@pytest.fixture
def network_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, on a file system of libfuse."""
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse")
    disk, folder = tmp_path / "disk", tmp_path / "home"
    disk.mkdir()
    folder.mkdir()
    subprocess.run(["bindfs", disk, folder], check=True)
    try:
        monkeypatch.chdir(folder)
        yield folder
        monkeypatch.undo()
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_removed_file_that_is_open_keeps_its_folder(network_folder: Path) -> None:
    """What `tests.nfs` repeats for the processes of unit tests."""
    (network_folder / "folder").mkdir()
    file = network_folder / "folder" / "file"
    with file.open("w"):
        file.unlink()
        assert [path.name[:12] for path in file.parent.iterdir()] == [".fuse_hidden"]
        with pytest.raises(OSError, match="not empty"):
            file.parent.rmdir()
    remove_folder(file.parent, 60.0)  # libfuse learns a moment later that the file is closed
    assert not file.parent.exists()


def test_records_and_parts_are_removed(network_folder: Path) -> None:
    """A build of a data set ended with an error there, and `spotmpi clean` left folders without records."""
    (network_folder / "raw").mkdir()
    for name in "ab":
        (network_folder / "raw" / f"{name}.csv").write_text("stars\n1\n2\n")
    (network_folder / "sets.py").write_text(SETS)
    built = subprocess.run([sys.executable, "sets.py"], capture_output=True, text=True, timeout=120)
    assert (built.returncode, built.stdout) == (0, "4\n"), built.stderr
    assert list(network_folder.glob("store/datasets/ratings/.parts/*")) == []
    assert spotmpi_process("run", "--", "true").returncode == 0
    cleaned = spotmpi_process("clean", "--older", "0s", "--yes")
    assert cleaned.stderr == "spotmpi: runs deleted: 2\n" and list(network_folder.glob("runs/*")) == []
