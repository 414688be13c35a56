"""The environment of an image on this machine: which Python it gets, when it counts as installed, and who waits."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spotmpi.core import names, reminders
from spotmpi.core.errors import SpotmpiError
from spotmpi.images import environment
from tests.transient_errors import TransientErrors


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setattr(names, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one image, `small`, that needs no packages and brings a module of its own."""
    folder = tmp_path / "images"
    (folder / "small" / "site-packages").mkdir(parents=True)
    (folder / "small" / "requirements.lock").write_text("")
    (folder / "small" / "site-packages" / "brought_along.py").write_text("ANSWER = 42\n")
    require(folder, ">=3.11")
    monkeypatch.setattr(names, "IMAGES", folder)
    return folder


def require(images: Path, python: str) -> None:
    """Let the image ask for these versions of Python."""
    (images / "small" / "pyproject.toml").write_text(f'[project]\nname = "small"\nrequires-python = "{python}"\n')


def run(folder: Path, code: str) -> str:
    """What a line of Python prints in an environment."""
    return subprocess.run([folder / "bin" / "python", "-c", code], capture_output=True, text=True, check=True).stdout


def test_whoever_waits_for_the_install_of_another_process_says_so(images: Path) -> None:
    folder = environment.location("small")
    (folder / "bin").mkdir(parents=True)
    messages = []

    with (folder.parent / f".{folder.name}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)

        def finish_install(text: str) -> None:
            messages.append(text)
            (folder / "bin" / "python").symlink_to(sys.executable)
            environment.mark_installed(folder)
            fcntl.flock(turn, fcntl.LOCK_UN)

        assert environment.prepare("small", finish_install) == folder

    assert messages == ["waiting for another process that installs the small image"]


def test_an_installation_that_takes_long_says_that_it_goes_on(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reminders, "INTERVAL", 0.01)
    said: list[str] = []
    reminded = threading.Event()

    def echo(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            reminded.set()

    def install(image: str, folder: Path, lock: Path) -> None:
        folder.mkdir(parents=True)
        assert reminded.wait(20.0)

    monkeypatch.setattr(environment, "_install", install)
    environment.prepare("small", echo)
    text = r"still installing the small image's locked requirements, for \d+ s; uv gives up where a"
    assert re.match(text, said[1])
    assert "reminders" not in [each.name for each in threading.enumerate()], "they end with the installation"


def test_an_image_runs_with_the_interpreter_of_spotmpi_and_has_its_own_modules(images: Path) -> None:
    folder = environment.prepare("small")
    code = "import brought_along, sys; print(brought_along.ANSWER, *sys.version_info[:2])"
    assert run(folder, code).split() == ["42", *map(str, sys.version_info[:2])]
    assert environment.prepare("small", pytest.fail) == folder, "installed once"


def test_a_run_with_gpus_has_the_packages_for_gpus_where_an_image_has_such(images: Path) -> None:
    assert environment.location("small", gpus=True) == environment.location("small")
    (images / "small" / "requirements-gpu.lock").write_text("# CuPy\n")
    assert environment.location("small", gpus=True) != environment.location("small")
    folder = environment.prepare("small", gpus=True)
    assert folder == environment.location("small", gpus=True) and run(folder, "print(1)") == "1\n"


def test_a_changed_module_of_an_image_is_another_environment(images: Path) -> None:
    before = environment.location("small")
    (images / "small" / "site-packages" / "brought_along.py").write_text("ANSWER = 43\n")
    assert environment.location("small") != before


@pytest.mark.parametrize("change", ["removed", "another"])
def test_an_environment_whose_python_was_replaced_is_installed_again(images: Path, change: str) -> None:
    folder = environment.prepare("small")
    python = folder / "bin" / "python"
    python.unlink()
    python.symlink_to("/nonexistent/python3" if change == "removed" else "/bin/true")
    assert not environment.is_installed(folder)

    said: list[str] = []
    assert environment.prepare("small", said.append) == folder
    assert said == ["installing the small image's locked requirements (once)"]
    assert run(folder, "import brought_along; print(brought_along.ANSWER)") == "42\n"


@pytest.mark.parametrize(("call", "name"), [("stat", "bin/python"), ("open", ".ready")])
def test_an_environment_on_a_disk_that_fails_for_a_moment_is_not_installed_again(
    images: Path, monkeypatch: pytest.MonkeyPatch, call: str, name: str
) -> None:
    """Runs use it, and would lose their packages."""
    folder = environment.prepare("small")
    TransientErrors(monkeypatch.setattr).add(call, str(folder / name), errno.ESTALE)
    with pytest.raises(OSError, match="Stale"):
        environment.prepare("small", pytest.fail)
    assert environment.prepare("small", pytest.fail) == folder


@pytest.mark.parametrize("place", ["bin", "pyenv/versions/3.99.1/bin"])
def test_an_image_that_does_not_run_with_this_python_gets_another_one_from_path_or_pyenv(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The real uv looks for it; spotmpi only believes that it runs with a Python that the image does not know."""
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    require(images, f"=={sys.version_info[0]}.{sys.version_info[1]}.*")
    shims = tmp_path / "shims"
    for folder in (tmp_path / place, shims):
        folder.mkdir(parents=True)
    (tmp_path / place / "python3").symlink_to(os.path.realpath(sys.executable))
    # As pyenv's, where .python-version selects a version that was removed.
    (shims / "python3").write_text("#!/bin/sh\necho \"pyenv: version '3.98.1' is not installed\" >&2\nexit 1\n")
    (shims / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}:{tmp_path / 'bin'}:/nonexistent")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "managed"))

    folder = environment.prepare("small")
    assert run(folder, "import sys; print(*sys.version_info[:2])").split() == [*map(str, sys.version_info[:2])]


def test_where_no_python_is_found_or_downloaded_one_line_says_which_and_what_to_do(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(images, "==3.98.*")
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(SpotmpiError) as error:
        environment.prepare("small")
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("the small image needs Python ==3.98.*, this is 3.")
    assert "put one on PATH" in message


# What uv 0.13.8 says of a proxy whose certificate it does not know.
UNTRUSTED = """error: Failed to fetch: https://pypi.org/simple/tomli-w/
  cause: error sending request for url (https://pypi.org/simple/tomli-w/)
  cause: client error (Connect)
  cause: invalid peer certificate: UnknownIssuer

hint: Consider enabling use of system TLS certificates with the `--system-certs` command-line flag
"""


@pytest.mark.parametrize(("chosen", "known", "calls"), [(None, True, 2), (None, False, 2), ("0", True, 1)])
def test_certificates_of_this_machine_suffice_unless_the_user_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None, known: bool, calls: int
) -> None:
    uv, recorded = tmp_path / "uv", tmp_path / "recorded"
    passes = '[ "$UV_SYSTEM_CERTS" = 1 ] && exit 0' if known else ":"
    (tmp_path / "words").write_text(UNTRUSTED)
    uv.write_text(f"#!/bin/sh\necho x >> {recorded}\n{passes}\ncat {tmp_path}/words >&2\nexit 2\n")
    uv.chmod(0o755)
    monkeypatch.setattr(environment, "find_uv", lambda: str(uv))
    for name in ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS"):
        monkeypatch.delenv(name, raising=False)
    if chosen:
        monkeypatch.setenv("UV_SYSTEM_CERTS", chosen)
    if known and not chosen:
        environment.run_uv("pip", "sync")
    else:
        with pytest.raises(SpotmpiError) as failed:
            environment.run_uv("pip", "sync")
        last = str(failed.value).splitlines()[-2:]
        assert last[0].endswith("invalid peer certificate: UnknownIssuer")
        assert last[1] == "set SSL_CERT_FILE to a file with the certificates of your network's proxy"
    assert recorded.read_text().split() == ["x"] * calls


@pytest.mark.parametrize(
    ("variable", "chosen", "given"),
    [
        ("UV_PYTHON_DOWNLOADS", "manual", "manual"),
        ("UV_PYTHON_DOWNLOADS", None, "unset"),
        ("UV_COMPILE_BYTECODE_TIMEOUT", "90", "90"),
        ("UV_COMPILE_BYTECODE_TIMEOUT", None, "600"),
    ],
)
def test_whether_uv_may_download_a_python_and_its_time_to_compile_a_file_are_the_users_choice(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, chosen: str | None, given: str
) -> None:
    """A busy machine needed more than uv's 60 seconds for a file of 3 MB."""
    recorded = tmp_path / "recorded"
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "${{{variable}-unset}}" > {recorded}\nexit 1\n')
    uv.chmod(0o755)
    monkeypatch.setattr(environment, "find_uv", lambda: str(uv))
    monkeypatch.delenv(variable, raising=False)
    if chosen:
        monkeypatch.setenv(variable, chosen)
    with pytest.raises(SpotmpiError):
        environment.prepare("small")
    assert recorded.read_text().strip() == given


def test_a_cache_folder_that_cannot_be_written_is_named(images: Path, cache: Path) -> None:
    """As where HOME cannot be written: the run ended with an unexpected error."""
    cache.touch()
    remedy = "set SPOTMPI_CACHE to a folder that can be written"
    with pytest.raises(SpotmpiError, match=f"cannot write {cache}/images: Not a directory; {remedy}"):
        environment.prepare("small")
