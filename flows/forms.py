"""The forms of the deployments: lists to choose from where the tree has one, and no fields that are not for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import Flow
from prefect.utilities.callables import parameter_schema

from tasks.graph.names import SUITE
from tasks.graph.rows import backbone_names, paper_folder, papers, row_addresses
from tasks.params.pages import entries
from tasks.params.scales import scale_names
from tasks.params.stages import run_settings
from tasks.params.yaml_files import folders_of

#: Parameters that the deployment sets.
INTERNAL = ("root",)


def form(root: Path, flow: Flow[..., Any], examples: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the schema of a flow's parameters as a form of a tree: the server refuses what is not in a list.

    Args:
        root: the tree, whose rows, models, scales and seeds are the choices.
        flow: the deployment's.
        examples: of `models`, the registered models of a re-evaluation; the registry may have others.
    """
    schema: dict[str, Any] = parameter_schema(flow).model_dump_for_openapi()
    hidden = (*INTERNAL, "rows") if flow.name == SUITE else INTERNAL
    fields = {name: field for name, field in schema["properties"].items() if name not in hidden}
    for name, known in _choices(root, flow.name).items():
        if name in fields:
            _listed(fields[name])["enum"] = known
    if examples and "models" in fields:
        _listed(fields["models"])["examples"] = list(examples)
    return {**schema, "properties": fields}


def _listed(field: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a field that is one value: the items of a list, which may be left out, or the field."""
    found: dict[str, Any] = field.get("anyOf", [field])[0]
    return found.get("items", found)


def _choices(root: Path, flow: str) -> dict[str, list[Any]]:
    """Returns the values that a field of a flow's form may have."""
    known = papers(root)
    rows = {paper: sorted(row_addresses(root, paper)) for paper in known}
    settings = run_settings(root)
    parts = (*settings.demo.values(), *settings.demo_all.values())
    seeds = {*settings.suite.seeds, *(seed for some in settings.suite.scale_seeds.values() for seed in some)}
    seeds |= {seed for part in parts for seed in part.seeds}
    folders = [path.name for path in folders_of(root / "params")]
    models = {name: entries(root, paper_folder(name), "reward_models") for name in folders}
    return {
        "rows": sorted({*rows.get(flow, ()), *backbone_names(root)}),
        "seeds": sorted(seeds),
        "scale": sorted(scale_names(root)),
        "start": [f"{paper}/{row}" for paper in known for row in rows[paper]],
        "reward_model": ["", *(f"{paper}/{name}" for paper, found in models.items() for name in sorted(found))],
    }
