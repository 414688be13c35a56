"""Variants of a job spec, as ``name:key=value,...`` describes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import Convert, from_values, setting_with_places

BASE = "base"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
_FIELD = "variant"
_SHAPE = 'write it as name:key=value,..., such as "wide:slots=2" or "fp16:args+=--allreduce-dtype fp16"'
_SELECTS = tuple(f"kubernetes.{key}" for key in ("node_selector", "node_groups", "instance_type", "placement_group"))
_NOT_MEASURED = ("name", "limits")  # what may differ without changing what is measured


@dataclass(frozen=True)
class Variant:
    """A spec under a name; ``settings`` are the overrides that make it from the base, ``keys`` what they change.

    ``values`` are the parameters of a study that it combines, each with its value as text.
    """

    name: str
    settings: tuple[str, ...]
    spec: JobSpec
    values: tuple[tuple[str, str], ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """What the variant changes: the spec's top-level keys, and ``machine`` if it selects nodes."""
        changed = {re.split(r"[.+=]", setting.strip())[0] for setting in self.settings}
        selects = any(setting.strip().startswith(_SELECTS) for setting in self.settings)
        return tuple(sorted({*changed, "machine"} if selects else changed))

    @property
    def text(self) -> str:
        """The variant as ``--variant`` takes it."""
        return f"{self.name}:{','.join(self.settings)}"


def read(texts: Iterable[str], base: JobSpec, wrong: Collection[str] = ()) -> tuple[tuple[Variant, ...], list[Problem]]:
    """The base and the variants that *texts* describe, and the problems of the others.

    Those are an unreadable text, an unknown key, a name used twice, and nothing changed, unless *base* is without a
    value for one of the *wrong* keys that the variant changes.
    """
    variants = [Variant(BASE, (), base)]
    problems: list[Problem] = []
    for text in texts:
        try:
            variant = _read(text, base)
        except InputError as error:
            problems += error.problems
            continue
        problem = _clash(variant, text, variants, wrong)
        if problem:
            problems.append(problem)
        else:
            variants.append(variant)
    return tuple(variants), problems


def _read(text: str, base: JobSpec) -> Variant:
    """The variant of *base* that *text* describes; InputError where it describes none."""
    name, colon, rest = text.partition(":")
    settings = tuple(_split(rest))
    if not colon or not settings:
        raise input_error(wording.option(_FIELD), text, _SHAPE)
    if not _NAME.fullmatch(name):
        raise input_error(
            wording.option(_FIELD),
            text,
            f"its name {name!r} may hold letters, digits and . _ + - only, at most 40 of them",
        )
    spec = base
    for setting in settings:
        spec = vary(spec, setting, text)
    return Variant(name, settings, spec)


def vary(spec: JobSpec, setting: str, text: str) -> JobSpec:
    """*spec* with one override applied; InputError names *text* where that is not possible."""
    key, equals, _ = (part.strip() for part in setting.partition("="))
    if key == "nodes":
        raise input_error(wording.option(_FIELD), text, f"node counts are varied with {wording.option('nodes')}")
    if not equals or not key.strip("+"):
        raise input_error(wording.option(_FIELD), text, f"{setting!r} sets nothing: {_SHAPE}")
    try:
        return from_values(spec.canonical(), [setting])
    except InputError as error:
        raise InputError(
            [Problem(f"{wording.option(_FIELD)} {text}", None, str(problem)) for problem in error.problems]
        ) from None


def with_places(field: str, texts: Iterable[str], convert: Convert) -> tuple[list[str], list[Problem]]:
    """Variants or settings with the places of the entries that they name, and the problems, of *field*, of the others.

    *convert* gives the place of what is read as a folder, where that is another one. A study records places, since a
    name stands for another entry later.
    """
    found: list[str] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            found.append(setting_with_places(text, convert))
        except InputError as error:
            problems += [Problem(field, text, str(problem)) for problem in error.problems]
    return found, problems


def _clash(variant: Variant, text: str, others: Sequence[Variant], wrong: Collection[str]) -> Problem | None:
    for other in others:
        if variant.name == other.name:
            why = "the spec itself has this name" if other.name == BASE else "two variants have this name"
            return Problem(wording.option(_FIELD), text, f"{why}; choose another")
        if _measured(variant.spec) == _measured(other.spec) and not set(wrong).intersection(variant.keys):
            same = "changes nothing that is measured" if other.name == BASE else f"is the same as {other.name}"
            return Problem(wording.option(_FIELD), text, f"{same}; leave it out or change another key")
    return None


def _measured(spec: JobSpec) -> dict[str, object]:
    return {key: value for key, value in spec.canonical().items() if key not in _NOT_MEASURED}


def _split(text: str) -> list[str]:
    """*text* cut at the commas outside of quotes and brackets."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
