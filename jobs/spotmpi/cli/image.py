"""`spotmpi image`: build an image, and push it where a cluster can pull it."""

from typing import Annotated

import typer

from spotmpi.cli.options import On, command_group

app = command_group()

Name = Annotated[str, typer.Argument(help="A folder under images/.", metavar="NAME")]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--build-arg", help="An ARG of the Dockerfile, such as BASE_IMAGE=...; repeatable.", metavar="NAME=VALUE"
    ),
]
Cpu = Annotated[bool, typer.Option("--cpu", help="For machines without GPUs: without CUDA.")]
Tool = Annotated[
    str | None, typer.Option("--tool", help="buildah, podman or docker (default: the first that is installed).")
]


@app.command("build")
def build(name: Name, cpu: Cpu = False, build_arg: Arguments = None, tool: Tool = None) -> None:
    """Build an image and print its reference.

    An image that has been built from the same files is not built again.
    """
    from spotmpi.api.images import build_image
    from spotmpi.core.wording import echo

    print(build_image(name, build_arg or (), tool, echo, cpu))


@app.command("push")
def push(
    name: Name,
    to: Annotated[str | None, typer.Option("--to", help="Repository (default: the environment's).")] = None,
    on: On = None,
    cpu: Cpu = False,
    build_arg: Arguments = None,
    tool: Tool = None,
) -> None:
    """Push an image and print its reference.

    It is built first if needed, for an environment without GPUs as with --cpu. The reference has the digest.
    """
    from spotmpi.api.images import push_image
    from spotmpi.core.wording import echo

    print(push_image(name, to, on, build_arg or (), tool, echo, cpu))
