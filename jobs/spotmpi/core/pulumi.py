"""What Pulumi refuses a stack for, in one line with the remedy: its state, its secrets, its project. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spotmpi.core.errors import SpotmpiError
from spotmpi.core.wording import shorten

STACK = "pulumi:pulumi:Stack"  # the type of the resource that all others are in
NO_SUCH_STACK = "no stack named"
# What Pulumi's S3 client says without a region, and of a bucket in another one (pulumi-aws#1170, mapt#392).
_BUCKET_REGION = re.compile(r"Missing ?Region|BucketRegionError|PermanentRedirect")
# What Pulumi's backend says of a state or a lock that is no JSON, as a full disk leaves them, and of its folder.
_NO_JSON = re.compile(
    r"failed to load checkpoint: .*?(unexpected end of JSON input|invalid character|cannot unmarshal)"
)
_NO_LOCK = re.compile(
    r"^ *error: (unexpected end of JSON input|invalid character '.*' looking for|json: cannot unmarshal .*lockContent)",
    re.MULTILINE,
)
_NO_FOLDER = re.compile(r"unable to open bucket file://([^?\s]+)\S*: (.*)")
_NOT_WRITTEN = re.compile(r"blob \(.*(no space left on device|permission denied|read-only file system)")
_NO_PASSPHRASE = re.compile(r"unable to read PULUMI_CONFIG_PASSPHRASE_FILE: open (.*)")
_LOCK = re.compile(r"created by (.+ \(pid \d+\)) at (\S+)")  # pkg/backend/diy/lock.go
_NO_TIME = "0001-01-01T"  # Go's zero, of a lock that is JSON without content

_RESTORE = "restore an earlier version of it, which a versioned bucket has, as does .pulumi/backups there"


def require_deployment(stack: str, state: Mapping[str, Any]) -> None:
    """SpotmpiError for a state without content, which Pulumi takes for that of a new stack: it would build all anew."""
    if not state.get("deployment"):
        raise SpotmpiError(f"the state of {stack} is damaged, as it is empty: {_RESTORE}")


def refusal(stack: str, output: str) -> str | None:
    """What is wrong with the stack, its state or the project; None where Pulumi only reports others' errors."""
    cancel = f"`pulumi cancel --yes --stack {stack}`"
    damaged_lock = f"a lock of {stack} is damaged: if no update of it is running, {cancel}"
    if "currently locked" in output or "Another update is currently in progress" in output:
        locks = _LOCK.findall(output)
        holders = "; ".join(f"{by} at {time}" for by, time in locks if not time.startswith(_NO_TIME))
        if locks and not holders:
            return damaged_lock
        return f"stack {stack} is locked by another update{holders and f', of {holders}'}: if none is running, {cancel}"
    if NO_SUCH_STACK in output:
        ways = f"`spotmpi up {stack}` builds it, and `pulumi stack ls` lists those of this PULUMI_BACKEND_URL"
        return f"stack {stack} is not built: {ways}"
    if "passphrase must be set" in output and "new stack" in output:
        remedy = "choose one and set PULUMI_CONFIG_PASSPHRASE, or name a KMS key as `secretsprovider` in its file"
        return f"the state of {stack} needs a passphrase for its secrets, or a key: {remedy}"
    if "incorrect passphrase" in output or "passphrase must be set" in output:
        return f"the state of {stack} can't be decrypted: set PULUMI_CONFIG_PASSPHRASE to the one it was created with"
    if passphrase := _NO_PASSPHRASE.search(output):
        file = shorten(passphrase[1], 120)
        return f"the file in PULUMI_CONFIG_PASSPHRASE_FILE can't be read: {file}: correct the variable"
    if folder := _NO_FOLDER.search(output):
        where = shorten(folder[2].removeprefix(f"stat {folder[1]}: "), 120)
        return f"the folder in PULUMI_BACKEND_URL can't be opened: {where}: correct the variable, or create the folder"
    if problem := _NOT_WRITTEN.search(output):
        remedy = f"fix that; if a lock stays, {cancel}; then repeat the command"
        return f"Pulumi can't write the state of {stack}: {problem[1]}: {remedy}"
    if "PULUMI_ACCESS_TOKEN" in output:
        return "pulumi is not logged in: set PULUMI_BACKEND_URL, for example to s3://my-state, or `pulumi login`"
    if _BUCKET_REGION.search(output):
        return "Pulumi needs the region of the bucket: append it to PULUMI_BACKEND_URL, as in s3://my-state?region=us-east-1"
    if "NoSuchBucket" in output:
        return "the bucket of Pulumi's state does not exist: check PULUMI_BACKEND_URL, or let `spotmpi up` create it"
    if "resource plugin" in output and re.search(r"download|not found|no resource plugin", output):
        return "Pulumi lacks a plugin and could not install it: check this machine's network, then repeat the command"
    if "No module named" in output:
        return "the project's .venv lacks what its Pulumi program imports: run `./scripts/setup` there, then repeat"
    if "newer than what this version of the Pulumi CLI understands" in output or "unsupported checkpoint" in output:
        return f"a newer Pulumi wrote the state of {stack}: update this one, then repeat the command"
    if _NO_JSON.search(output):
        return f"the state of {stack} is damaged, as it is no JSON: {_RESTORE}"
    if _NO_LOCK.search(output):
        return damaged_lock
    if "snapshot integrity error" in output or "could not deserialize deployment" in output:
        return f"the state of {stack} is damaged: `pulumi state repair --stack {stack}`, or {_RESTORE}"
    if "account ID not allowed" in output:
        return f"the credentials are for another account than that of {stack}: assume a role there; nothing was changed"
    return None


def resources_of(state: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The resources of a stack, by `pulumi stack export`; none of a stack that does not exist."""
    found: list[dict[str, Any]] = (state or {}).get("deployment", {}).get("resources") or []
    return found


def written_at(state: Mapping[str, Any] | None) -> str | None:
    """When an update wrote a state last, by `pulumi stack export`; None for that of a new stack."""
    time: str | None = ((state or {}).get("deployment") or {}).get("manifest", {}).get("time")
    return time


def unfinished_creations(stack: str, state: Mapping[str, Any] | None) -> str | None:
    """What a killed update was creating, by `pulumi stack export`, with the remedy; None if nothing.

    Pulumi only warns of it, and creates it once more (pkg/resource/deploy/deployment_executor.go).
    """
    operations = (state or {}).get("deployment", {}).get("pending_operations") or []
    resources = [str(each["resource"]["urn"]) for each in operations if each.get("type") == "creating"]
    if not resources:
        return None
    shown = ", ".join(" ".join(urn.split("::")[-2:]).rpartition("$")[2] for urn in resources)
    places = dict.fromkeys("in the cluster" if "kubernetes:" in urn else "in AWS" for urn in resources)
    found = f"they may exist and bill, and Pulumi does not know them: delete them {' and '.join(places)} if they do"
    remedy = f"`pulumi refresh --clear-pending-creates --yes --stack {stack}`, then repeat the command"
    return f"an earlier update of {stack} was killed while it created {shown}: {found}, then {remedy}"
