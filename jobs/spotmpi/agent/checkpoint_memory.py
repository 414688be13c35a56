"""What agents do with the checkpoints of rank 0 in memory, which would be lost with their pod, job or run."""

from __future__ import annotations

import json
import os
import shutil
import sys

from . import checkpoint_files as files
from . import pod_record, protocol
from .context import AgentContext
from .files import error_text


def folder_of(context: AgentContext) -> str | None:
    """The folder in memory, or None where checkpoints go to the volume alone."""
    return context.plan["environment"].get(protocol.ENV_CHECKPOINT_MEMORY_PATH)


def preserve(context: AgentContext) -> None:
    """Copy the newest checkpoint in memory to the volume, unless that has one as new; a problem is a line.

    Those beyond the number to keep are removed, as rank 0 does after it has written one: attempts may all be too short
    for that. An agent whose attempt is no longer the newest of its run copies nothing.
    """
    memory, volume = folder_of(context), context.plan["environment"].get(protocol.ENV_CHECKPOINT_PATH)
    if memory is None or volume is None or _is_fenced(context):
        return
    if files.newest_iteration(memory) <= files.newest_iteration(volume):
        return
    for name in reversed(files.names(memory)):
        path = os.path.join(memory, name)
        try:
            manifest = files.read_manifest(path)
            with open(os.path.join(path, files.STATE), "rb") as state:
                files.receive(state.read, manifest, volume, context.plan["run"], to_volume=True)
            files.keep_newest(volume, int(context.plan["environment"][protocol.ENV_CHECKPOINT_KEEP]))
            return
        except (OSError, files.Damaged) as error:
            sys.stderr.write("%s in memory cannot be copied to %s: %s\n" % (name, volume, error_text(error)))


def clear(context: AgentContext) -> None:
    """Remove what the run has in memory."""
    memory = folder_of(context)
    if memory is not None:
        shutil.rmtree(memory, ignore_errors=True)


def _is_fenced(context: AgentContext) -> bool:
    """Whether another agent has begun a newer attempt than the last one of this pod, which knows it by its ranks'."""
    try:
        with open(context.environment_file, encoding="utf-8") as file:
            own = int(json.load(file)[protocol.ENV_ATTEMPT])
    except (OSError, ValueError, KeyError):  # the agent of a run on this machine, which is the only one
        return False
    return pod_record.newest_attempt(context.folder) > own
