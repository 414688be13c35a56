"""A stack's file follows what EKS has moved by itself, so that no update tries to take it back."""

from __future__ import annotations

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallFailed
from spotmpi.core.progress import Say
from spotmpi.environments import versions
from spotmpi.environments.stack_file import Pins, StackFile, with_pins, write_stack
from spotmpi.environments.versions import minor, order


def follow(stack: StackFile, aws: Aws, say: Say) -> None:
    """Write the versions that *stack* runs into its file where it names older ones, or no Kubernetes version at all.

    EKS upgrades a control plane whose standard support has ended, and takes nodes to the newest AMI release with each
    new version of their launch template; it takes neither back. Where nothing is built, nothing happens; CallFailed.
    """
    region = stack.region or aws.region
    if region is None:
        return
    try:
        running = versions.running(aws, region, stack.environment)
    except CallFailed as error:
        if error.code != "ResourceNotFoundException":
            raise
        return
    said, now = stack.kubernetes, running.control_plane
    releases = {
        group: release
        for group, release in running.newest_releases.items()
        if group in stack.ami_releases and order(release) > order(stack.ami_releases[group])
    }
    moved = said is None or minor(said) < minor(now)
    if not moved and not releases:
        return
    kubernetes = now if moved or said is None else said
    write_stack(stack.path, with_pins(stack.stack, Pins(kubernetes, {}, releases)))
    what = [f"Kubernetes {now}"] if moved else []
    what += [f"AMI release {release} on {group}" for group, release in sorted(releases.items())]
    say(f"{stack.path} now says what runs: {', '.join(what)}")
