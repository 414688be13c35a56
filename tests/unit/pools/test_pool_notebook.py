"""A worker pool of this machine in the cells of a notebook, in a real kernel that is restarted on its way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.pool_notebook import OUTPUT, cells, execute
from tests.unit.notebooks import open_notebook


def test_a_notebook_uses_every_verb_and_collects_its_results_after_a_restart_of_its_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    notebook = cells("overrides=[\"limits.driver='10m'\"]")
    client = open_notebook(notebook.values(), tmp_path, monkeypatch)

    assert execute(client, notebook) == OUTPUT
