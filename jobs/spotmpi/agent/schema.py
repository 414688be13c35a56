"""The JSON objects that agents write and exchange, as types: attempt records, a run's summary, and wire messages.

Each carries its version. A key that is not in a class's required part may be absent.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, TypedDict, cast

from . import protocol

ATTEMPT_VERSION = 1
SUMMARY_VERSION = 1
MESSAGE_VERSION = 1


class _WorldBase(TypedDict):
    members: List[str]
    ranks: int
    size: int
    rate: Optional[float]


class WorldRecord(_WorldBase, total=False):
    """What an attempt ran on, see `launch.World`."""

    standby: int
    pods: List[str]


class _AttemptBase(TypedDict):
    """What every attempt record holds, also that of an attempt whose agent was lost."""

    attempt: int
    started: float  # Unix seconds
    cause: str  # see `outcomes`
    last_iteration: Optional[int]


class AttemptRecord(_AttemptBase, total=False):
    """How one attempt ended: ``attempts/<n>/node-0.json``. Without ``ended``, its agent was lost before."""

    version: int
    node: int
    allocated: float  # Unix seconds from which on the attempt had its nodes
    ended: float
    elapsed: float  # seconds for which the attempt had its nodes, by a clock that nobody sets
    reason: Optional[str]
    exit_code: int
    lost_nodes: List[int]  # lost without notice
    failed_machine: Optional[str]  # on which the attempt failed, where that is known
    world: WorldRecord
    resumed_iteration: Optional[int]
    first_iteration: Optional[int]
    first_iteration_time: Optional[float]  # Unix seconds
    start: Optional[float]  # seconds until then for which it had had its nodes, by a clock that nobody sets
    checkpoint_iteration: Optional[int]
    lost_iterations: Optional[int]  # that this attempt has repeated
    hardware: List[Dict[str, Any]]
    context: Dict[str, Any]
    result: Dict[str, Any]


class Summary(TypedDict, total=False):
    """How a run ended: ``summary.json``."""

    version: int
    id: str
    name: str
    state: str
    reason: Optional[str]
    started: float
    ended: float
    failures: int
    interruptions: int
    iteration: Optional[int]
    oversubscribed: bool
    work: Dict[str, Any]
    hardware: List[Dict[str, Any]]
    image: Dict[str, Any]
    context: Dict[str, Any]
    result: Dict[str, Any]
    attempts: List[AttemptRecord]


class Greeting(TypedDict, total=False):
    """A worker's first message: its run, which member of it it is, and on which machine."""

    version: int
    run: str
    member: str
    restart_count: int
    machine: Dict[str, Any]


_SECONDS = ("started", "ended", "allocated", "elapsed")
_SECONDS_OR_NONE = ("first_iteration_time", "start")


def read_attempt(text: str) -> AttemptRecord | None:
    """The attempt record in *text*, see `attempt_in`."""
    return attempt_in(read_object(text))


def attempt_in(values: dict[str, Any]) -> AttemptRecord | None:
    """The attempt record in a JSON object, without what has another type than it should.

    None where its writer was cut off, or another program of the run has written what nobody can compute with.
    """
    values = protocol.without_unfit(values, _facts())
    complete = {"cause", "started", "last_iteration"} <= values.keys()
    usable = all(_is_number(values[key]) for key in _SECONDS if key in values)
    usable = usable and all(_is_number(values[key]) for key in _SECONDS_OR_NONE if values.get(key) is not None)
    usable = usable and isinstance(values.get("lost_nodes") or [], list)
    if "world" in values:
        values["world"] = read_world(values["world"])
        usable = usable and values["world"] is not None
    return cast(AttemptRecord, values) if complete and usable else None


def summary_in(values: dict[str, Any]) -> Summary:
    """The summary of a run in a JSON object, without what has another type than it should."""
    facts = {**_facts(), **dict.fromkeys((*_SECONDS, *_SECONDS_OR_NONE), _is_number)}
    summary = protocol.without_unfit(values, {**facts, "work": protocol.is_object})
    if summary.get("work"):
        summary["work"] = work_in(summary["work"])
    attempts = summary.get("attempts")
    if attempts is not None:
        objects = [each for each in attempts if isinstance(each, dict)] if isinstance(attempts, list) else []
        summary["attempts"] = [protocol.without_unfit(each, facts) for each in objects]
    return cast(Summary, summary)


def work_in(values: Any) -> dict[str, Any]:
    """What identifies the work of a run in a JSON value, without what has another type than it should.

    See `runs.fingerprint.identify` for what that is.
    """
    return protocol.without_unfit(values, _work()) if isinstance(values, dict) else {}


def read_world(values: Any) -> WorldRecord | None:
    """What an attempt ran on, or None."""
    return cast(WorldRecord, {"rate": None, **values}) if _is_world(values) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is(checks: Mapping[str, Callable[[Any], bool]], *required: str) -> Callable[[Any], bool]:
    """The check for objects with values that fit *checks*, of which the *required* ones are known."""

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or any(value.get(key) is None for key in required):
            return False
        return value == protocol.without_unfit(value, checks)

    return check


def _are(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _are_named_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(protocol.is_text, value.values()))


def _is_data(value: Any) -> bool:
    """Whether *value* identifies a data folder as `runs.data_fingerprint.identify` does, or by its path alone."""
    known = ("path",) if isinstance(value, dict) and value.get("state") is None else ("path", "files", "bytes")
    return _is(_DATA, *known)(value) and _DATA.keys() <= value.keys()


def _is_world(value: Any) -> bool:
    numbers = dict.fromkeys(("ranks", "size", "standby"), lambda number: protocol.is_whole(number) and number >= 0)
    texts = dict.fromkeys(("members", "pods"), protocol.are_texts)
    return _is({**numbers, **texts, "rate": _is_number}, "members")(value)


_DATA = {
    **dict.fromkeys(("path", "listing", "state", "content"), protocol.is_text),
    **dict.fromkeys(("files", "bytes"), protocol.is_whole),
}


@functools.lru_cache(maxsize=None)
def _facts() -> Dict[str, Callable[[Any], bool]]:
    """The checks of what attempts and summaries have, by key."""
    placement = dict.fromkeys(("type", "market", "zone", "placement_group", "node_group"), protocol.is_text)
    return {
        **dict.fromkeys(("cause", "state", "reason", "failed_machine", "id", "name"), protocol.is_text),
        **dict.fromkeys(("attempt", "exit_code", "failures", "interruptions", "iteration"), protocol.is_whole),
        **dict.fromkeys(("last_iteration", "resumed_iteration", "first_iteration"), protocol.is_whole),
        **dict.fromkeys(("checkpoint_iteration", "lost_iterations"), protocol.is_whole),
        **dict.fromkeys(("context", "result"), protocol.is_object),
        "hardware": _are(_is({"nodes": _are(protocol.is_whole), **placement})),
    }


@functools.lru_cache(maxsize=None)
def _work() -> Dict[str, Callable[[Any], bool]]:
    """The checks of what identifies the work of a run, by key."""
    gpu = dict.fromkeys(("name", "memory", "driver"), protocol.is_text)
    machine = {
        **dict.fromkeys(("cpu", "system"), protocol.is_text),
        **dict.fromkeys(("cores", "memory_gib"), protocol.is_whole),
        "gpus": _are(_is(gpu, *gpu)),
    }
    return {
        **dict.fromkeys(
            ("program", "launcher", "container", "spotmpi", "interpreter", "python", "init"), protocol.is_text
        ),
        **dict.fromkeys(("env", "stream"), protocol.is_object),
        **dict.fromkeys(("args", "entries"), protocol.are_texts),
        "seed": protocol.is_whole,
        "versions": _are_named_texts,
        "resources": _is({"cpu": _is_number}, "cpu"),
        "code": _is({"files": _are_named_texts, "commit": protocol.is_text, "diff": protocol.is_text}),
        "data": _is_data,
        "image": _is({"name": protocol.is_text, "lock": protocol.is_text}, "name", "lock"),
        "machine": _is(machine, "cpu", "cores", "memory_gib", "gpus"),
    }


def read_object(text: str) -> dict[str, Any]:
    """The JSON object in *text*; an empty one where its writer was cut off, or its values are of no use."""
    try:
        values = protocol.read_json(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) and protocol.valid(values.get("kind", ""), values) else {}
