"""torch on first use, for modules that settings are read from: importing them must not take the seconds of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch as torch
else:
    import importlib
    from typing import Any

    class _Torch:
        """The module torch, imported when an attribute of it is read for the first time."""

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("torch"), name)

    torch = _Torch()
