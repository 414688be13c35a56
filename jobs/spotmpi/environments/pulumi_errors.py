"""Why a command of Pulumi failed, in one line with the remedy; its output, which comes before, has all the details."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def _codes(*codes: str) -> re.Pattern[str]:
    """What finds one of these codes of AWS."""
    # One with a point behind it is another, such as AuthFailure.ServiceLinkedRoleCreationNotPermitted.
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, codes))})(?!\.?\w)")


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
_KEY_STATE = re.compile(r"KMSInvalidStateException|is pending (deletion|import)|is disabled|Key '[^']*' does not exist")
_CAPACITY = _codes("InsufficientInstanceCapacity", "UnfulfillableCapacity", "Unsupported")
_EKS_ZONE = _codes("UnsupportedAvailabilityZoneException")
_NO_ONE_ZONE = _codes("UnsupportedAvailabilityZone")  # EFS API Reference, CreateFileSystem
_UNREACHABLE = re.compile(r"[Cc]luster (is )?unreachable")
_NETWORK = re.compile(r"no such host|connection (refused|reset)|i/o timeout|TLS handshake timeout|send request failed")


def rejects_keys(output: str) -> bool:
    """Whether AWS answered what it does to unknown keys, as a region does that is not enabled."""
    return _UNKNOWN_KEY.search(_relevant(output)) is not None


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
    for pattern, remedy in _REMEDIES.items():
        if found := pattern.search(text):
            return remedy if isinstance(remedy, str) else remedy(found, stack)
    return ""


def _allow(found: re.Match[str], stack: str) -> str:
    """What to do about an action that is not permitted, by IAM or by a policy above it."""
    action = _ACTION.search(found.string)
    what = f"allow {action[1]}" if action else "allow it"
    if "explicit deny" in found.string:
        return f"{what}: a policy denies it, of the organization or a permissions boundary, which overrides others"
    return f"{what} in your IAM policy; `spotmpi doctor --iam up` prints all that is needed"


def _delete_user(found: re.Match[str], stack: str) -> str:
    """How to find what uses a part of the network, and to delete it."""
    what = "something that is not in this stack's state uses it"
    used = _IN_USE.search(found.string)
    if used is None:
        return f"{what}: delete that"
    query = f"Name={_FILTERS[used['kind']]},Values={used[0]}"
    command = f"aws ec2 describe-network-interfaces --filters {query}"
    return f"{what}: `{command}` in its region lists interfaces with what made them; delete that"


def _delete_groups(found: re.Match[str], stack: str) -> str:
    command = f"aws eks list-nodegroups --cluster-name {found['name']}"
    return f"node groups that are not in this stack's state use it: `{command}` lists them in its region; delete them"


def _delete_leftover(found: re.Match[str], stack: str) -> str:
    owner = "it exists and is not in this stack's state, so another stack or a former environment has it"
    return f"{owner}: `spotmpi doctor {stack}` lists leftovers; delete it, or rename the stack"


_UNKNOWN_KEY = _codes(*errors.UNKNOWN_KEY)
_LOG_IN = f"the AWS credentials are missing, wrong or expired: {errors.LOG_IN}"
_SLOW_DOWN = "AWS throttles the account's calls: wait a minute"
# What to do about an error in which a pattern is found, the first of these that is: as text, or made of what was found
# and the stack.
_REMEDIES: Mapping[re.Pattern[str], str | Callable[[re.Match[str], str], str]] = {
    _UNKNOWN_KEY: f"AWS does not know these credentials in the stack's region: {errors.LOG_IN}, or that region is not "
    "enabled in the account (`aws account enable-region`)",
    _codes(*errors.EXPIRED, *errors.SIGNATURE): _LOG_IN,
    _CREDENTIALS: _LOG_IN,
    _codes(*errors.DENIED): _allow,
    _ACTION: _allow,
    _codes(*errors.THROTTLED): _SLOW_DOWN,
    re.compile("Rate exceeded"): _SLOW_DOWN,
    _KEY_STATE: "the KMS key can't be used: cancel its deletion (`aws kms cancel-key-deletion`), or enable it",
    _CAPACITY: "choose another type or zone for it (`spotmpi zones` compares them), or wait for capacity",
    _EKS_ZONE: "EKS needs two zones with capacity for it: set `second_zone` to one of those that are named above",
    _NO_PRINCIPAL: "IAM has no such role or user: correct its ARN in `cluster.admins` or `cluster.users`; that of an "
    "SSO role has a path, which `aws iam list-roles` shows",
    **{_codes(code): f"{each.message}: {each.remedy}" for code, each in LAUNCH_FAILURES.items()},
    _HALF_A_CHART: "a killed update left the chart unfinished: `helm list --all --all-namespaces` shows it; `helm "
    "uninstall` one whose status is pending-install, and `helm rollback` another",
    _OBJECT_EXISTS: "it is in the cluster and not in this stack's state: delete it with kubectl",
    _QUOTA: "a quota of the account is used up: delete what nobody needs, or request an increase in Service Quotas",
    _EXISTS: _delete_leftover,
    _AT_WORK: "AWS is still at work on an earlier change of it: wait a few minutes",
    _HAS_GROUPS: _delete_groups,
    _USED: _delete_user,
    _NO_ONE_ZONE: "EFS has no One Zone storage there: set `storage.one_zone` to false, or choose another zone",
    _NO_ACCESS: "this login may not do that in the cluster: use the role that built it, which can add to "
    "`cluster.admins`",
    _WEBHOOK: "the pods that the cluster asks about such objects are not ready yet: wait a minute",
    _NOT_READY: "its pods do not become ready: `kubectl get pods --all-namespaces` shows which",
    _UNREACHABLE: "check that your address is in `access` (https://checkip.amazonaws.com shows it), and the network",
    _NETWORK: "check this machine's network, and the region",
    _INTERNAL: "AWS had an internal error: wait a few minutes",
}
