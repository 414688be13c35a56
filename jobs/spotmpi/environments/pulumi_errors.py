"""Why a command of Pulumi failed, in one line with the remedy; its output, which comes before, has all the details."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spotmpi.aws import errors
from spotmpi.aws.launch_failures import LAUNCH_FAILURES
from spotmpi.core.pulumi import refusal
from spotmpi.core.wording import counted

_LAST_LINES = 15  # of an output without diagnostics
_LONGEST, _LONGEST_KNOWN = 300, 200  # characters of a provider's message, and of one whose remedy is known
_DUPLICATE_ENTRY = re.compile(r"EKS Access Entry \([^:()]+:(arn:[^()]+)\).*already in use on this cluster")
_REFUSAL = re.compile(r'before hook "[^"]*" failed: (.*)')  # how the Pulumi program refuses to replace running nodes
# What a policy of `--policy-pack` forbids: its name, the resource, what the policy is about, and what it says.
_VIOLATION = re.compile(r"^ +- \[mandatory\] +(\S+) +\([^()\s]+: ([^()\s]+)\)\n.*\n +(.*)", re.MULTILINE)
# A hook that the engine was still waiting for when the program ended with its own error.
_CANCELLED = re.compile(r"rpc error: code = (Unavailable|Canceled) desc = ")
_RESOURCE = re.compile(r"  (?P<resource>[\w.:/-]+ \([^()]+\)):")
# The engine's own, which follow from an error of a resource.
_NO_REASON = re.compile(
    r"(update|preview|destroy|refresh) failed|\d+ errors? occurred:?|error:?"
    r"|(rpc error: code = \w+ desc = )?grpc: the client connection is closing"  # to the program, once it is ended
)
# What AWS's provider writes around AWS's words.
_AROUND = (
    (re.compile(r"^\s*sdk-v2/provider2?\.go:\d+: sdk\.helper_schema: "), ""),
    (re.compile(r": provider=aws@[\w.+-]+$"), ""),
    (re.compile(r"operation error [\w ]+: \w+, (exceeded maximum number of attempts, \d+, )?"), ""),
    (re.compile(r"https response error StatusCode: \d+, RequestID: [^,]*, (HostID: [^,]*, )?(api error )?"), ""),
    (re.compile(r"\s*Encoded authorization failure message: \S+"), ""),
    (re.compile(r"\s*status code: \d+, request id: \S+"), ""),
    (re.compile(r"^(\w+ )?urn:pulumi:\S+: "), ""),
    (re.compile(r"\b\d+ errors? occurred:\s*"), ""),
    (re.compile(r"(^|\s)\* "), r"\1"),
    (re.compile(r"^waiting for EKS .*? last error: "), ""),
    (re.compile(r"\.? last error: %!s\(<nil>\)$"), ""),  # Go's nil: a state without a reason, as EFS has them
    (re.compile(r"^[\w:]+ resource '[^']*' has a problem: "), ""),
    (re.compile(r"\s*Please see https?://\S+( for more information[^.]*\.)?( Details:)?"), ""),
    (re.compile(r"\s*(because no identity-based policy allows the \S+ action|host id: \S+)"), ""),
)
_ACTION = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
_IN_USE = re.compile(r"\b(?P<kind>vpc|subnet|sg)-[0-9a-f]+\b")
_FILTERS = {"vpc": "vpc-id", "subnet": "subnet-id", "sg": "group-id"}
_CREDENTIALS = re.compile(
    r"([Ii]nvalid|[Nn]o valid|validate AWS|refresh cached) credential|has expired"  # pulumi-aws#2285, #3310
)
_QUOTA = re.compile(r"LimitExceeded|QuotaExceeded|[Yy]ou've reached your quota|maximum number of")
_EXISTS = re.compile(r"AlreadyExists|\.Duplicate\b|DuplicateRecord|already exists|still in use|AlreadyOwnedByYou")
_USED = re.compile(r"DependencyViolation|DeleteConflict|\w+InUse(Exception)?\b|NotEmpty|has dependencies|is in use")
_HAS_GROUPS = re.compile(
    r"deleting EKS Cluster \((?P<name>[^()]+)\).*has nodegroups"
)  # EKS API Reference, DeleteCluster
_AT_WORK = re.compile(
    r"\b(in progress|ConcurrentModification\w*|OperationAborted|ResourceContention|IncorrectFileSystemLifeCycleState)\b"
    r"|\bdelete: timeout while waiting\b"
)
# CreateAccessEntry, with the ARN in brackets before (terraform-aws-eks#2969).
_NO_PRINCIPAL = re.compile(r"principalArn is invalid")
# What a killed update leaves of a chart (pulumi-kubernetes#2054, #2758).
_HALF_A_CHART = re.compile(r"another operation \(install/upgrade/rollback\)|cannot re-use a name that is still in use")
_OBJECT_EXISTS = re.compile(r'[a-z.]+ "[^"]+" already exists')  # NewAlreadyExists in apimachinery, errors.go
# Faults of AWS's own, as in the models of the services.
_INTERNAL = re.compile(
    r"\b(ServerException|ServiceUnavailable\w*|ServiceFailure|Internal(Server)?(Error|Failure)\w*|KMSInternalException"
    r"|DependencyTimeout\w*)\b"
)
# What an API server answers to an unknown token, and to a user without the right (apimachinery, errors.go).
_NO_ACCESS = re.compile(r"server has asked for the client to provide credentials|is forbidden: User \"[^\"]*\" cannot ")
_WEBHOOK = re.compile(r"failed calling webhook")
_NOT_READY = re.compile(
    r"failed to (become available|initialize completely)|EKS Add-On \([^()]+\) create: timeout while waiting"
)
_NETWORK = re.compile(r"no such host|connection (refused|reset)|i/o timeout|TLS handshake timeout|send request failed")
_CAPACITY = ("InsufficientInstanceCapacity", "UnfulfillableCapacity", "Unsupported")


def rejects_keys(output: str) -> bool:
    """Whether AWS answered what it does to unknown keys, as a region does that is not enabled."""
    return _has(_relevant(output), *errors.UNKNOWN_KEY)


def explain(stack: str, command: str, output: str) -> str:
    """The error of `pulumi COMMAND` on a stack, by what it printed."""
    if violations := list(dict.fromkeys(_VIOLATION.findall(output))):
        rule, resource, found = violations[0]
        more = f" (and {counted(len(violations) - 1, 'more violation')}, above)" if len(violations) > 1 else ""
        remedy = "change the stack's settings, or the policy pack"
        return f"{stack} breaks a policy: {resource}: {found} ({rule}){more}: {remedy}"
    text = _relevant(output)
    if known := refusal(stack, text):
        return known
    if refusals := dict.fromkeys(each for each in _REFUSAL.findall(text) if not _CANCELLED.match(each)):
        return f"{stack} was not changed: {'; '.join(refusals)}" if command == "preview" else "; ".join(refusals)
    if entry := _DUPLICATE_ENTRY.search(text):
        remedy = "remove it from `cluster.admins` and `cluster.users`, then repeat the command"
        return f"{entry[1]} already has access to the cluster, as the identity that created it: {remedy}"
    found = list(_errors(text))
    settings = next((each for each in found if "settings to change" in each.text), None)
    if settings is not None:
        return f"{settings.text}; they are listed above"
    if not found:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        found = [_Error("", lines[-1].removeprefix("error:").strip() if lines else "no output")]
    remedies = [(each, _remedy(each.text, stack)) for each in found]
    error, remedy = next((each for each in remedies if each[1]), remedies[0])
    more = f" (and {counted(len(found) - 1, 'more error')}, above)" if len(found) > 1 else ""
    end = f": {remedy}; then the same command continues" if remedy else "; the same command continues"
    reason = error.shown(_LONGEST_KNOWN if remedy else _LONGEST)
    return f"`pulumi {command} --stack {stack}` failed: {reason}{more}{end}"


def _relevant(output: str) -> str:
    """The part of an output that says why: all errors, and the diagnostics, or the last lines without any."""
    lines = output.splitlines()
    begin = next((index for index, line in enumerate(lines) if line.startswith("Diagnostics:")), None)
    if begin is None:
        rest = lines[-_LAST_LINES:]
    else:
        lines, rest = lines[:begin], lines[begin + 1 :]
    return "\n".join([*(line for line in lines if line.lstrip().startswith("error:") and line not in rest), *rest])


@dataclass(frozen=True)
class _Error:
    """An error of one resource, such as `aws:ec2:Vpc spotmpi-lab`, or of none; in one line."""

    resource: str
    text: str

    def shown(self, longest: int) -> str:
        """It in at most so many characters, behind its resource."""
        text = self.text if len(self.text) <= longest else self.text[: longest - 3] + "..."
        return f"{self.resource}: {text}" if self.resource else text


def _errors(output: str) -> Iterator[_Error]:
    """The errors in an output that give a reason, each once: their lines up to a blank one or to the next error."""
    seen, resource, lines = set[str](), "", list[str]()
    for line in [*output.splitlines(), ""]:
        header, is_error = _RESOURCE.fullmatch(line), line.lstrip().startswith("error:")
        if (header or is_error or not line.strip()) and lines:
            text = _in_one_line(lines)
            if not (_NO_REASON.fullmatch(text) or _is_cancelled_hook(text) or text in seen):
                seen.add(text)
                yield _Error(resource, text.removeprefix(f"{resource.partition(' ')[2]}: "))
            lines = []
        if header:
            resource = header["resource"].replace("(", "").removesuffix(")")
        elif is_error:
            lines = [line.lstrip().removeprefix("error:")]
        elif lines:
            lines.append(line)


def _is_cancelled_hook(text: str) -> bool:
    refusal = _REFUSAL.search(text)
    return refusal is not None and _CANCELLED.match(refusal[1]) is not None


def _in_one_line(lines: Sequence[str]) -> str:
    """The lines of an error as one, of a traceback only the exception."""
    begin = next((index for index, line in enumerate(lines) if line.strip().startswith("Traceback (")), None)
    if begin is not None:
        lines = [*lines[:begin], lines[-1]]
    text = " ".join(" ".join(lines).split())
    for pattern, replacement in _AROUND:
        text = pattern.sub(replacement, text)
    return text.strip(" :.")


def _remedy(text: str, stack: str) -> str:
    """What to do about an error of AWS or of a cluster; empty where that is not known."""
    if _has(text, *errors.UNKNOWN_KEY):
        region = "that region is not enabled in the account (`aws account enable-region`)"
        return f"AWS does not know these credentials in the stack's region: {errors.LOG_IN}, or {region}"
    if _has(text, *errors.EXPIRED, *errors.SIGNATURE) or _CREDENTIALS.search(text):
        return f"the AWS credentials are missing, wrong or expired: {errors.LOG_IN}"
    if _has(text, *errors.DENIED) or _ACTION.search(text):
        return _allow(text)
    if _has(text, *errors.THROTTLED) or "Rate exceeded" in text:
        return "AWS throttles the account's calls: wait a minute"
    if re.search(r"KMSInvalidStateException|is pending (deletion|import)|is disabled|Key '[^']*' does not exist", text):
        return "the KMS key can't be used: cancel its deletion (`aws kms cancel-key-deletion`), or enable it"
    if _has(text, *_CAPACITY):
        return "choose another type or zone for it (`spotmpi zones` compares them), or wait for capacity"
    if _has(text, "UnsupportedAvailabilityZoneException"):
        return "EKS needs two zones with capacity for it: set `second_zone` to one of those that are named above"
    if _NO_PRINCIPAL.search(text):
        sso = "that of an SSO role has a path, which `aws iam list-roles` shows"
        return f"IAM has no such role or user: correct its ARN in `cluster.admins` or `cluster.users`; {sso}"
    if launch := next((LAUNCH_FAILURES[code] for code in LAUNCH_FAILURES if _has(text, code)), None):
        return f"{launch.message}: {launch.remedy}"
    if _HALF_A_CHART.search(text):
        how = "`helm uninstall` one whose status is pending-install, and `helm rollback` another"
        return f"a killed update left the chart unfinished: `helm list --all --all-namespaces` shows it; {how}"
    if _OBJECT_EXISTS.search(text):
        return "it is in the cluster and not in this stack's state: delete it with kubectl"
    if _QUOTA.search(text):
        return "a quota of the account is used up: delete what nobody needs, or request an increase in Service Quotas"
    if _EXISTS.search(text):
        owner = "it exists and is not in this stack's state, so another stack or a former environment has it"
        return f"{owner}: `spotmpi doctor {stack}` lists leftovers; delete it, or rename the stack"
    if _AT_WORK.search(text):
        return "AWS is still at work on an earlier change of it: wait a few minutes"
    if cluster := _HAS_GROUPS.search(text):
        command = f"aws eks list-nodegroups --cluster-name {cluster['name']}"
        return (
            f"node groups that are not in this stack's state use it: `{command}` lists them in its region; delete them"
        )
    if _USED.search(text):
        return f"something that is not in this stack's state uses it: {_find_user(text)}delete that"
    if _has(text, "UnsupportedAvailabilityZone"):  # EFS API Reference, CreateFileSystem
        return "EFS has no One Zone storage there: set `storage.one_zone` to false, or choose another zone"
    if _NO_ACCESS.search(text):
        return (
            "this login may not do that in the cluster: use the role that built it, which can add to `cluster.admins`"
        )
    if _WEBHOOK.search(text):
        return "the pods that the cluster asks about such objects are not ready yet: wait a minute"
    if _NOT_READY.search(text):
        return "its pods do not become ready: `kubectl get pods --all-namespaces` shows which"
    if re.search(r"[Cc]luster (is )?unreachable", text):
        return "check that your address is in `access` (https://checkip.amazonaws.com shows it), and the network"
    if _NETWORK.search(text):
        return "check this machine's network, and the region"
    return "AWS had an internal error: wait a few minutes" if _INTERNAL.search(text) else ""


def _allow(text: str) -> str:
    """What to do about an action that is not permitted, by IAM or by a policy above it."""
    action = _ACTION.search(text)
    what = f"allow {action[1]}" if action else "allow it"
    if "explicit deny" in text:
        return f"{what}: a policy denies it, of the organization or a permissions boundary, which overrides others"
    return f"{what} in your IAM policy; `spotmpi doctor --iam up` prints all that is needed"


def _find_user(text: str) -> str:
    """How to find what uses a part of the network."""
    used = _IN_USE.search(text)
    if used is None:
        return ""
    query = f"Name={_FILTERS[used['kind']]},Values={used[0]}"
    command = f"aws ec2 describe-network-interfaces --filters {query}"
    return f"`{command}` in its region lists interfaces with what made them; "


def _has(text: str, *codes: str) -> bool:
    # One with a point behind it is another, such as AuthFailure.ServiceLinkedRoleCreationNotPermitted.
    return any(re.search(rf"(?<!\w){re.escape(code)}(?!\.?\w)", text) for code in codes)
