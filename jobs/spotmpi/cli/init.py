"""`spotmpi init`: a commented spec to start from, or a Pulumi project of one's own."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer


def command(
    path: Annotated[
        Path | None, typer.Argument(help="Where to write the spec; default: job.toml.", metavar="FILE")
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            "--script", help="Script to run; default: train.py, main.py or the only *.py file.", metavar="FILE"
        ),
    ] = None,
    example: Annotated[
        str | None, typer.Option("--example", metavar="NAME", help="Copy a ready spec or study, such as digits or cpu.")
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option("--environment", metavar="NAME", help="Write a Pulumi project for this environment instead."),
    ] = None,
) -> None:
    """Write a commented job spec to start from."""
    where = path if environment is not None else None
    _refuse_conflicts({"--environment": environment, "--example": example, "--script": script, "path": where})
    if environment is not None:
        _write_environment(environment)
    elif example is not None:
        _copy_example(example, path or Path(f"{example}.toml"))
    else:
        _write_spec(path or Path("job.toml"), script)


def _refuse_conflicts(choices: Mapping[str, str | Path | None]) -> None:
    """InputError where more than one of the *choices* is made."""
    from spotmpi.core.errors import input_error

    made = [name for name, value in choices.items() if value is not None]
    if len(made) > 1:
        raise input_error(made[0], choices[made[0]], f"does not go together with {made[1]}: omit one of them")


def _write_spec(path: Path, named: str | None) -> None:
    from spotmpi.api import runs
    from spotmpi.spec import template

    script = named or _choose_script()
    print(runs.init(path, script))
    if script:
        scripts = template.scripts(Path())
        others = [] if named or template.likeliest(scripts) != script else scripts[1:]
        more = f" (--script {shlex.quote(others[0])} takes another one)" if others else ""
        has_pattern = "\n[metrics]\n" in path.read_text(encoding="utf-8")
        guessed = "image, launcher, slots and metrics.pattern" if has_pattern else "image, launcher and slots"
        typer.echo(f"the spec runs {script}{more}; check its {guessed}", err=True)
    else:
        typer.echo("no *.py file is here, so the spec runs an example; --script FILE takes a script of yours", err=True)
    typer.echo(f"next: spotmpi run {_argument(path)}", err=True)


def _copy_example(name: str, path: Path) -> None:
    from spotmpi.spec import template

    print(*template.write_example(name, path), sep="\n")
    verb = "bench" if "[parameters]" in path.read_text(encoding="utf-8") else "run"
    typer.echo(f"next: spotmpi {verb} {_argument(path)}", err=True)


def _argument(path: Path) -> str:
    """*path* as a word of a command, which begins with a dash only where it is an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def _choose_script() -> str | None:
    """The script in the current folder; asks only if there are several and none is named train.py or main.py."""
    from spotmpi.core.errors import input_error
    from spotmpi.spec import template

    scripts = template.scripts(Path())
    script = template.likeliest(scripts)
    if script is not None or not scripts:
        return script
    if not sys.stdin.isatty():
        raise input_error("--script", None, f"name the script to run, one of: {', '.join(scripts)}")
    answer: str = typer.prompt(f"Script to run ({', '.join(scripts)})", default=scripts[0], err=True)
    return answer


def _write_environment(name: str) -> None:
    from spotmpi.environments import project
    from spotmpi.environments.stack_file import stack_of

    for path in project.write(name, Path()):
        print(path)
    stack = stack_of(name)
    typer.echo(f"next: set zones, groups and spotmpi:access in {project.stack_file(name)}", err=True)
    typer.echo(f"      ./scripts/setup && spotmpi doctor {stack} && spotmpi up {stack}", err=True)
