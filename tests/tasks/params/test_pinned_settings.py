"""Every typed entry of params/ and every generated pipeline is what it was when it was pinned.

python -m tests.tasks.params.test_pinned_settings    writes the pins again, after a wanted change
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tasks.graph.dvc_files import pipeline_file
from tasks.graph.matrix import build
from tasks.graph.typed_settings import PAPER_PAGES, SCALE_PAGES, type_of
from tasks.params.pages import Address, entries, read_settings
from tasks.params.scales import STAGES, scale_entries, scale_names
from tasks.params.stages import RUNS
from tasks.params.studies import FOLDER, read_study
from tasks.params.tuning import tuning_spec
from tasks.params.yaml_files import yaml_text

ROOT = Path(__file__).parents[3]
PINS = Path(__file__).with_name("pinned_settings.json")


def canonical(value: Any) -> Any:
    """Returns a typed value as JSON holds it, with the class of each dataclass; 1 and 1.0 stay different."""
    if is_dataclass(value):
        return {"class": type(value).__name__, **{f.name: canonical(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Mapping):
        return {str(name): canonical(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [canonical(part) for part in value]
    if isinstance(value, Enum):
        return canonical(value.value)
    return value if isinstance(value, str | int | float | None) else str(value)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def typed_entries() -> dict[str, Any]:
    """Returns every typed entry of params/ and studies/, by its address and the argument that it is typed as."""
    found: dict[str, Any] = {}
    for paper in sorted(path.name for path in (ROOT / "params").glob("*/") if path.name != "scales"):
        for kind in PAPER_PAGES:
            for address in entries(ROOT, f"params/{paper}", kind).values():
                found[address] = typed_at(address)
    for scale in scale_names(ROOT):
        for kind in SCALE_PAGES:
            for address in scale_entries(ROOT, scale, kind).values():
                found[f"{scale} {address}"] = typed_at(address)
        for name, address in scale_entries(ROOT, scale, STAGES).items():
            argument = " spec" if name.partition("-")[0] in ("entropies", "samples", "teacher") else " scale"
            found[f"{scale} {address}{'' if name == 'resources' else argument}"] = typed_at(address)
    found["reevaluation"] = typed_at(Address("params/reevaluation.yaml"))
    found[RUNS] = typed_at(Address(RUNS))
    found["tuning"] = tuning_spec(ROOT)
    return found | {f"studies/{file.name}": read_study(file) for file in sorted((ROOT / FOLDER).glob("*.yaml"))}


def typed_at(address: Address) -> Any:
    return type_of(address)(read_settings(address.under(ROOT)), address)


def pinned_now() -> dict[str, dict[str, str]]:
    """Returns the digests as they are now."""
    typed_now = {name: digest(json.dumps(canonical(value), sort_keys=True)) for name, value in typed_entries().items()}
    files = {
        (folder / "dvc.yaml").as_posix(): digest(yaml_text(pipeline_file(ROOT, graph, folder)))
        for folder, graph in build(ROOT).items()
    }
    return {"entries": typed_now, "pipelines": files}


@pytest.mark.parametrize("what", ["entries", "pipelines"])
def test_settings_and_pipelines_are_as_pinned(what: str, now: dict[str, dict[str, str]]) -> None:
    pins = json.loads(PINS.read_text(encoding="utf-8"))[what]
    changed = sorted(name for name in pins.keys() | now[what].keys() if pins.get(name) != now[what].get(name))
    assert changed == []


@pytest.fixture(scope="module")
def now() -> dict[str, dict[str, str]]:
    return pinned_now()


if __name__ == "__main__":
    PINS.write_text(json.dumps(pinned_now(), indent=0, sort_keys=True) + "\n", encoding="utf-8")
