"""The locks of a stack: what Pulumi says of them, and when the newest one was written.

`spotmpi.core.pulumi` knows the same words; a project that `spotmpi init --environment` wrote lacks that package.
"""

import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import boto3
import botocore.exceptions

from infra.settings import PROJECT

_LOCKED = re.compile(r"the stack is currently locked( by (\d+) lock)?")
_LOCK = re.compile(r"created by (.+ \(pid \d+\)) at (\S+)")
_NO_TIME = "0001-01-01T"  # Go's zero, of a lock that is JSON without content
# What Pulumi says of a lock that is no JSON, as a crash leaves it: no other file's error has no more than this.
_DAMAGED = re.compile(
    r"^ *error: (unexpected end of JSON input|invalid character '.*' looking for|json: cannot unmarshal .*lockContent)",
    re.MULTILINE,
)


def describe(stack: str, output: str) -> str | None:
    """Which locks Pulumi's *output* says hold a stack, with the remedy; None where it says nothing of any."""
    cancel = f"`pulumi cancel --yes --stack {stack}`"
    locks = _LOCK.findall(output)
    holders = "; ".join(f"{by} at {time}" for by, time in locks if not time.startswith(_NO_TIME))
    if _LOCKED.search(output) and (holders or not locks):
        return f"stack {stack} is locked by another update{holders and f', of {holders}'}: if none is running, {cancel}"
    if locks or _DAMAGED.search(output):
        return f"a lock of {stack} is damaged: if no update of it is running, {cancel}"
    return None


def show_age(backend: str, stack: str) -> str:
    """How to see when a lock was written, and to delete it, in stores whose files `newest` does not read; else empty.

    Their clients are no packages of this project; `pulumi cancel` deletes the same files (pkg/backend/diy/backend.go).
    """
    url, folder = urlsplit(backend), _folder(stack)
    path = f"{url.path.strip('/')}/{folder}".lstrip("/")
    if url.scheme == "gs":
        locks = f"gs://{url.netloc}/{path}"
        show, delete = f"gcloud storage ls --long {locks}", f"gcloud storage rm '{locks}*.json'"
    elif url.scheme == "azblob":
        account = "".join(f" --account-name {each}" for each in parse_qs(url.query).get("storage_account", ()))
        times = "--query '[].[name, properties.lastModified]' --output tsv"
        show = f"az storage blob list{account} --container-name {url.netloc} --prefix {path} {times}"
        delete = f"az storage blob delete-batch{account} --source {url.netloc} --pattern '{path}*.json'"
    else:
        return ""
    return f"; `{show}` says when it was written, and `{delete}` deletes it as well"


def _folder(stack: str) -> str:
    """The folder of a stack's locks in a backend (pkg/backend/diy/lock.go)."""
    return f".pulumi/locks/organization/{PROJECT}/{stack}/"


def newest(output: str, backend: str, folder: Path, stack: str) -> datetime | None:
    """When the newest lock was taken; None where that is unknown of one of them.

    By the clock of the machine that did where Pulumi tells it of each lock, else by that of the state's backend.
    """
    locked, taken = _LOCKED.search(output), _times(output)
    if locked and len(taken) == int(locked[2] or 0) > 0:
        return max(taken)
    return _newest_file(backend, folder, _folder(stack))


def _times(output: str) -> list[datetime]:
    times = [time for _, time in _LOCK.findall(output) if not time.startswith(_NO_TIME)]
    try:
        return [datetime.fromisoformat(time) for time in times]
    except ValueError:
        return []


def _newest_file(backend: str, folder: Path, prefix: str) -> datetime | None:
    """The time of the newest file under *prefix* in a backend; None for other stores."""
    url = urlsplit(backend)
    if url.scheme == "file":
        files = (folder / Path(url.netloc + url.path).expanduser() / prefix).glob("*.json")
        times = [datetime.fromtimestamp(each.stat().st_mtime, UTC) for each in files]
    elif url.scheme == "s3":
        try:
            client = boto3.client("s3", region_name=parse_qs(url.query).get("region", [None])[0])
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=url.netloc, Prefix=f"{url.path.strip('/')}/{prefix}".lstrip("/")
            )
            times = [each["LastModified"] for page in pages for each in page.get("Contents", ())]
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
            return None
    else:
        return None
    return max(times, default=None)
