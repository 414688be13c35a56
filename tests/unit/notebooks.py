"""Notebooks for tests, executed by a real kernel of this interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook


def open_notebook(cells: Iterable[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> NotebookClient:
    """The client of a notebook with these cells, whose kernel starts in ``folder/work``."""
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder / "jupyter"))
    kernel = folder / "jupyter" / "kernels" / "this"
    kernel.mkdir(parents=True)
    start = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernel / "kernel.json").write_text(f'{{"argv": {start}, "display_name": "this", "language": "python"}}')
    work = folder / "work"
    work.mkdir()
    notebook = new_notebook(cells=[new_code_cell(text) for text in cells])  # type: ignore[no-untyped-call]
    return NotebookClient(notebook, kernel_name="this", timeout=60, resources={"metadata": {"path": str(work)}})


def outputs_of(client: NotebookClient, names: Iterable[str]) -> dict[str, str]:
    """What each cell printed on stdout, by the name of the cell."""
    return {
        name: "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for name, cell in zip(names, client.nb.cells, strict=True)
    }
