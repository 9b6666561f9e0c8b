"""Items: stages with their modules, inputs and outputs, and the graph that holds each of them once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_core.errors import RecipeError
from tasks.params.pages import Address

SHARED = "shared"
#: A path, an entry's address, or several of the same kind (one per reward model).
Argument = str | int | tuple[str, ...]


@dataclass(frozen=True)
class Item:
    """A stage as pages and scale give it, before it is written into a dvc.yaml.

    Attributes:
        module: `tasks.<module>` is run.
        name: the row, reward model, backbone, data set or tokenizer that it makes.
        inputs: arguments of its command line, in order; an item stands for its result.
        out: its output directory.
        owner: the paper it belongs to, or 'shared'.
        seed: None for stages without one.
        after: items and files that it depends on beside its inputs.
        reads: entries whose code and data it reads beside those of its inputs (see `tasks.graph.code_dependencies`).
    """

    module: str
    name: str
    inputs: Mapping[str, Input]
    out: str
    owner: str
    seed: int | None = None
    after: tuple[Item | str, ...] = ()
    reads: tuple[Address, ...] = ()

    @property
    def stage(self) -> str:
        """Returns DVC's name of the stage: `policy-segment-bandit-0`, `sft-phi3-mini-0`, `check-par`."""
        owner = "" if self.owner == SHARED else self.owner
        seed = "" if self.seed is None else str(self.seed)
        return "-".join(filter(None, [self.module, owner, self.name, seed]))

    @property
    def arguments(self) -> dict[str, Argument]:
        """Returns the arguments of its command line, results by their paths."""
        return {name: _written(value) for name, value in self.inputs.items()}

    @property
    def addresses(self) -> list[Address]:
        """Returns the entries of pages among its inputs."""
        return [one for name in self.inputs for one in self.several(name) if isinstance(one, Address)]

    def several(self, name: str) -> tuple[Item | str | int, ...]:
        """Returns the values of an input, none where it has no such input."""
        value = self.inputs.get(name, ())
        return value if isinstance(value, tuple) else (value,)

    def items(self, name: str) -> list[Item]:
        """Returns the stages whose results are given as an input; what a user gives has none."""
        return [one for one in self.several(name) if isinstance(one, Item)]

    def item(self, name: str) -> Item:
        """Returns the stage whose result is given as an input."""
        return self.items(name)[0]

    def with_all_above(self) -> list[Item]:
        """Returns the stage, last, after every stage that it reads from, each once."""
        found: dict[str, Item] = {}

        def visit(item: Item) -> None:
            if item.out not in found:
                after = [one for one in item.after if isinstance(one, Item)]
                for one in [*(one for name in item.inputs for one in item.items(name)), *after]:
                    visit(one)
                found[item.out] = item

        visit(self)
        return [*found.values()]


#: Values of `Item.inputs`.
Input = Item | str | int | tuple[Item | str, ...]


@dataclass
class Graph:
    """The stages of one dvc.yaml by DVC's name, and the stages that make tables, by paper."""

    scale: str
    stages: dict[str, Item] = field(default_factory=dict)
    tables: dict[str, Item] = field(default_factory=dict)

    def add(self, items: Iterable[Item]) -> None:
        """Adds stages; the same stage twice counts once.

        Raises:
            RecipeError: two different stages of one name.
        """
        for item in items:
            known = self.stages.setdefault(item.stage, item)
            if known is not item and known != item:
                raise RecipeError(f"two stages are called {item.stage}: {known.out} and {item.out}")

    def items(self) -> list[Item]:
        return [*self.stages.values()]

    def outputs(self) -> set[str]:
        return {item.out for item in self.items()}


def result_of(item: Item) -> str:
    return f"{item.out}/result"


def _written(value: Input) -> Argument:
    if isinstance(value, tuple):
        return tuple(result_of(one) if isinstance(one, Item) else one for one in value)
    return result_of(value) if isinstance(value, Item) else value


def data_name(result: Path) -> str:
    """Returns the name of a data set with its draw, such as `dialogue` or `dialogue/1`, from its result's path
    `.../shared/data/<name>[/<seed>]/result`; of a result elsewhere, the name of the folder that it is in."""
    parts = result.parts[:-1]
    places = [place for place in range(2, len(parts)) if parts[place - 2 : place] == (SHARED, "data")]
    return "/".join(parts[places[-1] :]) if places else parts[-1]


def sft_name(result: Path) -> str:
    """Returns the name of an SFT model, from its result's path `.../shared/sft/<name>/<seed>/result`."""
    return result.parts[-3]
