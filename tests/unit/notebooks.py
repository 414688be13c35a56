"""Notebooks for tests, executed by a real kernel of this interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient


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
    blank: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    document = {
        "cells": [{**blank, "source": text} for text in cells],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    notebook = nbformat.from_dict(document)  # type: ignore[no-untyped-call]
    return NotebookClient(notebook, kernel_name="this", timeout=60, resources={"metadata": {"path": str(work)}})


def outputs_of(client: NotebookClient, names: Iterable[str]) -> dict[str, str]:
    """What each cell printed on stdout, by the name of the cell."""
    return {
        name: "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for name, cell in zip(names, client.nb.cells, strict=True)
    }
