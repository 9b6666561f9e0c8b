"""Items of the graph: one stage each, with its module, arguments and output, and the graph that keeps each once.

Stages of one module whose arguments differ are groups of their own (`policy`, `policy-entropies`, `policy-2-models`,
`policy-references`, `policy-selection-3-aspect-models`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.errors import RecipeError
from tasks.graph.rows import MEASURING

SHARED = "shared"
#: Modules that read entropies, or a SaT model's sentences, only where a segmenter needs them.
CUTTING = ("reward_model", "normaliser", "references", "policy", *MEASURING)
#: What policies read of sampled solutions.
SOLUTIONS = ("samples", "teacher", "token_rewards")
#: One path, or several of the same kind (one per reward model).
Argument = str | int | tuple[str, ...]


@dataclass(frozen=True)
class Item:
    """One stage.

    Attributes:
        module: `tasks.<module>` is run.
        name: the row, reward model, backbone, data set or tokenizer that it makes.
        arguments: its command line, in order.
        out: its output directory.
        owner: the paper it belongs to, or 'shared'.
        seed: None for stages without one.
    """

    module: str
    name: str
    arguments: Mapping[str, Argument]
    out: str
    owner: str
    seed: int | None = None

    @property
    def key(self) -> str:
        """Its name among the stages of a group."""
        parts = [] if self.owner == SHARED else [self.owner]
        parts += [self.name] if self.seed is None else [self.name, str(self.seed)]
        return "-".join(parts)

    @property
    def group(self) -> str:
        """The group of stages with the same arguments."""
        models = self.arguments.get("reward_model")
        aspects = [
            f"{len(given)}-{name.replace('_', '-')}s"
            for name in ("aspect", "aspect_model")
            if isinstance(given := self.arguments.get(name), tuple)
        ]
        own = ("selection", *SOLUTIONS) if self.module == "policy" else ()
        read = [name for name in own if name in self.arguments]
        if self.module == "policy" and not models:
            return "-".join(["policy-plain", *read, *aspects])
        several = [f"{len(models)}-models"] if isinstance(models, tuple) and len(models) > 1 else []
        inputs = ("entropies", "sentences") if self.module in CUTTING else ()
        cut = [name for name in inputs if name in self.arguments]
        known = self.arguments.get("references")
        compared = self.arguments.get("policies")
        several += [f"{len(compared)}-policies"] if isinstance(compared, tuple) else []
        centered = [f"{len(known)}-references" if len(known) > 1 else "references"] if isinstance(known, tuple) else []
        return "-".join([self.module, *cut, *several, *centered, *read, *aspects])

    def flat(self) -> dict[str, Any]:
        """The arguments as a mapping of single values, several paths numbered."""
        flat: dict[str, Any] = {}
        for name, value in self.arguments.items():
            if isinstance(value, tuple):
                flat |= {f"{name}_{i}": path for i, path in enumerate(value, start=1)}
            else:
                flat[name] = value
        return flat


def module_of(group: str) -> str:
    """The module that a group's stages run."""
    return group.partition("-")[0]


@dataclass
class Graph:
    """The stages of one dvc.yaml: items of each group by key, and tables by paper."""

    scale: str
    groups: dict[str, dict[str, Item]] = field(default_factory=dict)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, items: Iterable[Item]) -> None:
        """Adds stages; the same stage twice counts once.

        Raises:
            RecipeError: two different stages of one name.
        """
        for item in items:
            known = self.groups.setdefault(item.group, {}).setdefault(item.key, item)
            if known != item:
                raise RecipeError(f"two stages are called {item.group}@{item.key}: {known.out} and {item.out}")

    def items(self) -> list[Item]:
        return [item for group in self.groups.values() for item in group.values()]

    def outputs(self) -> set[str]:
        return {item.out for item in self.items()}


def result_of(item: Item) -> str:
    return f"{item.out}/result"
