"""torch and httpx on first use, for modules that settings are read from: importing them must not take the seconds of
torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx as httpx
    import torch as torch
else:
    import importlib
    from typing import Any

    class _Lazy:
        """A module that is imported when an attribute of it is read for the first time."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self._module), name)

    httpx, torch = _Lazy("httpx"), _Lazy("torch")
