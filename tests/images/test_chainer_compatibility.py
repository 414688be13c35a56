"""What the ChainerMN image restores for Chainer, with a package in its place; the programs run the real one.

`./scripts/gpu-check` runs the kernels themselves, on a GPU.
"""

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
    (site / "chainer_compatibility.pth").unlink()
    assert run("import chainer", site).returncode != 0


def test_where_chainer_is_not_imported_numpy_is_as_it_is_and_not_imported_either(site: Path) -> None:
    code = "import sys; print('numpy' in sys.modules); import numpy; print(hasattr(numpy, 'float'))"
    assert run(code, site).stdout.split() == ["False", "False"]


# What ChainerMN 7.8.1 does in `communicators/_memory_utility.py`, and what it uses of CuPy.
MEMORY_UTILITY = """
import chainer.backends.cuda
class Stream:
    def __init__(self, name): self.name = name
    def record(self): return "event of " + self.name
    def wait_event(self, event): print(self.name, "waits for the", event)
class cp:
    class cuda:
        Stream = Stream
Stream.null = Stream("default")
def _batched_pack_params(places, buffer, dtype, stream=None):
    print("pack", places, stream and stream.name)
"""


@pytest.fixture
def chainermn(site: Path) -> Path:
    """Both packages."""
    (site / "chainer" / "backends").mkdir()
    (site / "chainer" / "backends" / "__init__.py").write_text("")
    (site / "chainer" / "backends" / "cuda.py").write_text("def raw(code, name): return code")
    (site / "chainermn" / "communicators").mkdir(parents=True)
    (site / "chainermn" / "__init__.py").write_text("")
    (site / "chainermn" / "communicators" / "__init__.py").write_text("from . import _memory_utility")
    (site / "chainermn" / "communicators" / "_memory_utility.py").write_text(MEMORY_UTILITY)
    return site


def test_kernels_that_use_half_include_its_header(chainermn: Path) -> None:
    code = (
        "import chainermn.communicators, chainer.backends.cuda as c; print(c.raw('half x', 'a'), c.raw('float x', 'b'))"
    )
    done = run(code, chainermn)
    assert (done.stdout, done.stderr) == ("#include <cuda_fp16.h>\nhalf x float x\n", "")


def test_another_stream_waits_for_the_places_of_gradients_which_are_kept_for_two_iterations(chainermn: Path) -> None:
    code = """
import weakref
from chainermn.communicators import _memory_utility as utility
class Places:
    def __repr__(self): return "places"
def pack(stream):
    places = Places()
    utility._batched_pack_params(places, None, None, stream=stream)
    return weakref.ref(places)
own = utility.Stream("own")
kept = [pack(own) for _ in range(3)]
print([each() is not None for each in kept], pack(utility.Stream.null)(), pack(None)())
"""
    done = run(code, chainermn)
    waits = ["own waits for the event of default", "pack places own"] * 3
    last = ["pack places default", "pack places None", "[False, True, True] None None"]
    assert (done.stdout.splitlines(), done.stderr) == ([*waits, *last], "")
