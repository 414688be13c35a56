"""Which files have tests of the tiers that a marker expression selects: importing all takes each process seconds."""

from __future__ import annotations

import re

TIERS = ("images", "engine", "browser", "slurm", "cluster")
_MENTIONED = re.compile(rf"(not )?\b({'|'.join((*TIERS, 'extensive'))})\b")
_OF_FILE = re.compile(r"^pytestmark = (?:\[[^\]]*\]|.*)", re.MULTILINE)


def has_selected(source: str, expression: str) -> bool:
    """Whether a test file with this source may have a test that the expression selects.

    It has none if its `pytestmark` is of a tier that is left out, or if it does not name the tier that is requested.
    """
    mentioned = _MENTIONED.findall(expression)
    left_out = [tier for negation, tier in mentioned if negation]
    requested = [tier for negation, tier in mentioned if not negation]
    whole = _OF_FILE.search(source)
    if whole and any(_marks(whole[0], tier) for tier in left_out):
        return False
    return not requested or any(_marks(source, tier) for tier in requested)


def unnamed_tiers(source: str, markers: set[str]) -> list[str]:
    """The tiers among the *markers* of a test that its file does not name, so that `has_selected` misses it."""
    return [tier for tier in TIERS if tier in markers and not _marks(source, tier)]


def _marks(source: str, tier: str) -> bool:
    return f"mark.{tier}" in source
