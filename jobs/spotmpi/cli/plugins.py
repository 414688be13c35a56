"""Keeps pydantic from searching all installed packages for plugins, which takes a tenth of the start of a run."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_LOADER = "pydantic.plugin._loader"


class _NoPlugins(ModuleType):
    """In the place of pydantic's loader of plugins; nothing observes the models of this process."""

    @staticmethod
    def get_plugins() -> tuple[()]:
        """The plugins of pydantic."""
        return ()

    def __getattr__(self, name: str) -> Any:
        """What another version of pydantic imports besides, from its own loader."""
        if name.startswith("__"):  # the import system looks for a package's path
            raise AttributeError(name)
        sys.modules.pop(_LOADER, None)
        return getattr(import_module(_LOADER), name)


def leave_out_plugins() -> None:
    """Call it before anything imports pydantic; later it does nothing."""
    if "pydantic" not in sys.modules:
        sys.modules.setdefault(_LOADER, _NoPlugins(_LOADER))
