"""The design of a study in words: what each level of a dial sets, what rows fix, and the cells of each hypothesis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.params.studies import Hypothesis, StudySpec


@dataclass(frozen=True)
class DesignPart:
    """A part of a study's design.

    Attributes:
        name: such as 'dial length'.
        lines: by name, such as a level and what it sets.
    """

    name: str
    lines: Mapping[str, str]


def design_of(spec: StudySpec) -> list[DesignPart]:
    """Returns the design of a study, part by part."""
    parts = [DesignPart("settings of every cell", {"all": _set(spec.settings)})] if spec.settings else []
    parts += [
        DesignPart(f"dial {dial}", {level: _set(laid) for level, laid in levels.items()})
        for dial, levels in spec.dials.items()
    ]
    fixed = {row: _fixed(spec, row) for row in spec.rows if spec.fixed(row)}
    parts += [DesignPart("not tuned", fixed)] if fixed else []
    if spec.tuned_at:
        parts.append(DesignPart("tuned in", {"cells": ", ".join(spec.tuned_at)}))
    weights = {name: weights_text(spec, hypothesis) for name, hypothesis in spec.hypotheses.items()}
    return [*parts, DesignPart("hypotheses", weights)]


def _set(overlay: Mapping[str, Any]) -> str:
    """Returns what is laid over the scale's pages; of several settings, how many they are."""
    found = _flat(overlay)
    if not found:
        return "nothing: the scale's settings"
    said = "; ".join(f"{name} {_shown(value)}" for name, value in found.items())
    return said if len(found) == 1 else f"{len(found)} settings: {said}"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns settings by their whole names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
        found |= inner
    return found


def _shown(value: Any) -> str:
    return "removed" if value is None else ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _fixed(spec: StudySpec, row: str) -> str:
    own = spec.rows[row]["optimiser"]
    return "; ".join(f"{name} {_shown(own[name])}" for name in spec.fixed(row))


def weights_text(spec: StudySpec, hypothesis: Hypothesis) -> str:
    """Returns the rows of a hypothesis and the weight of their difference in each cell."""
    weights = spec.weighted_cells(hypothesis)
    cells = "; ".join(f"{weight:+.3g}".replace("-", "−") + f" {cell}" for cell, weight in weights.items())
    kl = "" if hypothesis.kl is None else f" at {hypothesis.kl:g} nats"
    return f"{hypothesis.row} less {hypothesis.than or spec.main}{kl}, {hypothesis.side} 0: {cells}"
