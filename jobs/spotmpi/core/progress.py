"""How long operations report their progress: one line of text at a time."""

from __future__ import annotations

from collections.abc import Callable

Echo = Callable[[str], None]
