"""What Pulumi refuses a stack for, in one line with the remedy: its state, its secrets, its project. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

STACK = "pulumi:pulumi:Stack"  # the type of the resource that all others are in
NO_SUCH_STACK = "no stack named"
# What Pulumi's S3 client says without a region, and of a bucket in another one (pulumi-aws#1170, mapt#392).
_BUCKET_REGION = re.compile(r"Missing ?Region|BucketRegionError|PermanentRedirect")
_LOCK = re.compile(r"created by (.+) \(pid \d+\) at (\S+)")  # pkg/backend/diy/lock.go


def refusal(stack: str, output: str) -> str | None:
    """What is wrong with the stack, its state or the project; None where Pulumi only reports others' errors."""
    if "currently locked" in output or "Another update is currently in progress" in output:
        holders = "; ".join(f"{by} at {time}" for by, time in _LOCK.findall(output))
        remedy = f"if none is running, `pulumi cancel --yes --stack {stack}`"
        return f"stack {stack} is locked by another update{holders and f', of {holders}'}: {remedy}"
    if NO_SUCH_STACK in output:
        ways = f"`spotmpi up {stack}` builds it, and `pulumi stack ls` lists those of this PULUMI_BACKEND_URL"
        return f"stack {stack} is not built: {ways}"
    if "passphrase must be set" in output and "new stack" in output:
        remedy = "choose one and set PULUMI_CONFIG_PASSPHRASE, or name a KMS key as `secretsprovider` in its file"
        return f"the state of {stack} needs a passphrase for its secrets, or a key: {remedy}"
    if "incorrect passphrase" in output or "passphrase must be set" in output:
        return f"the state of {stack} can't be decrypted: set PULUMI_CONFIG_PASSPHRASE to the one it was created with"
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
    if "newer than what this version of the Pulumi CLI understands" in output:
        return f"a newer Pulumi wrote the state of {stack}: update this one, then repeat the command"
    if "snapshot integrity error" in output or "could not deserialize deployment" in output:
        older = "restore an earlier version of it, which a versioned bucket has, as does .pulumi/backups there"
        return f"the state of {stack} is damaged: `pulumi state repair --stack {stack}`, or {older}"
    if "account ID not allowed" in output:
        return f"the credentials are for another account than that of {stack}: assume a role there; nothing was changed"
    return None


def unfinished_creations(stack: str, state: Mapping[str, Any] | None) -> str | None:
    """What a killed update was creating, by `pulumi stack export`, with the remedy; None if nothing.

    Pulumi only warns of it, and creates it once more (pkg/resource/deploy/deployment_executor.go).
    """
    operations = (state or {}).get("deployment", {}).get("pending_operations") or []
    resources = [str(each["resource"]["urn"]) for each in operations if each.get("type") == "creating"]
    if not resources:
        return None
    shown = ", ".join(" ".join(urn.split("::")[-2:]).rpartition("$")[2] for urn in resources)
    found = "they may exist and bill, and Pulumi does not know them: delete them in AWS if they do"
    remedy = f"`pulumi refresh --clear-pending-creates --yes --stack {stack}`, then repeat the command"
    return f"an earlier update of {stack} was killed while it created {shown}: {found}, then {remedy}"
