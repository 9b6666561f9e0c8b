"""Items: stages with their modules, arguments and outputs, and the graph that holds each of them once."""

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
        arguments: its command line, in order.
        out: its output directory.
        owner: the paper it belongs to, or 'shared'.
        seed: None for stages without one.
        after: files and directories that it depends on beside its arguments.
        reads: entries whose code and data it reads beside those of its arguments (see `tasks.graph.code_dependencies`).
    """

    module: str
    name: str
    arguments: Mapping[str, Argument]
    out: str
    owner: str
    seed: int | None = None
    after: tuple[str, ...] = ()
    reads: tuple[Address, ...] = ()

    @property
    def stage(self) -> str:
        """Returns DVC's name of the stage: `policy-segment-bandit-0`, `sft-phi3-mini-0`, `check-par`."""
        owner = "" if self.owner == SHARED else self.owner
        seed = "" if self.seed is None else str(self.seed)
        return "-".join(filter(None, [self.module, owner, self.name, seed]))

    @property
    def addresses(self) -> list[Address]:
        """Returns the entries of pages among its arguments."""
        values = (value if isinstance(value, tuple) else (value,) for value in self.arguments.values())
        return [one for several in values for one in several if isinstance(one, Address)]


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
            if known != item:
                raise RecipeError(f"two stages are called {item.stage}: {known.out} and {item.out}")

    def items(self) -> list[Item]:
        return [*self.stages.values()]

    def outputs(self) -> set[str]:
        return {item.out for item in self.items()}


def result_of(item: Item) -> str:
    return f"{item.out}/result"


def data_name(result: Path) -> str:
    """Returns the name of a data set with its draw, such as `dialogue` or `dialogue/1`, from its result's path
    `.../shared/data/<name>[/<seed>]/result`; of a result elsewhere, the name of the folder that it is in."""
    parts = result.parts[:-1]
    places = [place for place in range(2, len(parts)) if parts[place - 2 : place] == (SHARED, "data")]
    return "/".join(parts[places[-1] :]) if places else parts[-1]


def sft_name(result: Path) -> str:
    """Returns the name of an SFT model, from its result's path `.../shared/sft/<name>/<seed>/result`."""
    return result.parts[-3]
