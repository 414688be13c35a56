"""How messages name an option: as the command line takes it in a command, else as the argument of a Python function.

Like the language of messages it is one setting of a process, so that no function has to know who has called it. Reasons
that a run records are read by both, and name no option.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# Arguments that are not called like the option, or have another form.
_ARGUMENTS = {
    "build-arg": "arguments",
    "env": 'overrides=["env.{}"]',
    "force": "force=True",
    "new": "StudyOptions(fresh=True)",
    "resume": "run",
    "runs": 'on=Target(on, Path("{}"))',
    "set": "overrides",
    "variant": "variants",
}

_in_command = False


@contextmanager
def of_commands() -> Iterator[None]:
    """Name options as the command line takes them, while in the context."""
    global _in_command
    before, _in_command = _in_command, True
    try:
        yield
    finally:
        _in_command = before


def either(command: str, function: str) -> str:
    """What one does in a command, or where a function was called."""
    return command if _in_command else function


def option(name: str, value: object = "") -> str:
    """The option *name*, without its dashes, or the argument that it stands for; with *value* as it is written."""
    if _in_command:
        return f"--{name} {value}".rstrip()
    if name in _ARGUMENTS:
        return _ARGUMENTS[name].format(value)
    argument = name.replace("-", "_")
    if value == "":
        return argument
    return f"{argument}={value}" if isinstance(value, int) else f'{argument}="{value}"'
