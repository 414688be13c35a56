"""What the ChainerMN image restores of NumPy, with a package in the place of Chainer; the programs run the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULES = Path(__file__).resolve().parents[2] / "images" / "chainermn" / "site-packages"

# What Chainer 7.8.1 does with NumPy when it is imported or used (`_environment_check`, `types`, `functions`).
CHAINER = """
import numpy, numpy.distutils.system_info
assert numpy.distutils.system_info.get_info("blas_opt") == {}
assert numpy.dtype(numpy.float) == "float64" and numpy.zeros(1, numpy.int).dtype.kind == "i"
index = {t().itemsize: t for t in numpy.sctypes["int"]}
assert index[numpy.intp().itemsize]().dtype == numpy.intp and numpy.float32 in numpy.sctypes["float"]
"""


def run(code: str, site: Path) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter with *site* as a folder of packages, whose `.pth` files it reads."""
    program = f"import site; site.addsitedir({str(site)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with the modules of the image, and a package in the place of Chainer."""
    for module in MODULES.iterdir():
        if module.is_file():
            (tmp_path / module.name).write_text(module.read_text())
    (tmp_path / "chainer").mkdir()
    (tmp_path / "chainer" / "__init__.py").write_text(CHAINER)
    return tmp_path


def test_a_script_that_imports_chainer_finds_what_numpy_removed(site: Path) -> None:
    script = "import numpy as np, chainer\nprint(np.float, np.object, np.bool(1), np.ones(2, dtype=np.bool).dtype)"
    done = run(script, site)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[-1] == "bool"


def test_without_the_module_chainer_finds_nothing_of_it(site: Path) -> None:
    (site / "numpy_for_chainer.pth").unlink()
    assert run("import chainer", site).returncode != 0


def test_where_chainer_is_not_imported_numpy_is_as_it_is_and_not_imported_either(site: Path) -> None:
    code = "import sys; print('numpy' in sys.modules); import numpy; print(hasattr(numpy, 'float'))"
    assert run(code, site).stdout.split() == ["False", "False"]
