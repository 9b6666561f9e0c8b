"""The parser of rows by their kind: a recipe that trains a policy, or a row that measures, compares or names something.

`parse_row` types one row, recipes by `rlhf_core.recipe.parse_recipe`; `tasks.graph.rows.read_rows` reads the pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rlhf_core.errors import RecipeError, hint
from rlhf_core.recipe import Recipe, parse_recipe
from rlhf_core.typed import Checked, each_once, typed


@dataclass(frozen=True, kw_only=True)
class RawRow(Checked):
    """A backbone as it is, under a title of its own."""

    kind: str
    backbone: str
    title: str = ""
    notes: str = ""


@dataclass(frozen=True, kw_only=True)
class MeasuringRow(RawRow):
    """A row that measures a reward model, of the paper or of another one as `<paper>/<name>`."""

    reward_model: str


@dataclass(frozen=True, kw_only=True)
class ComparingRow(RawRow):
    """A row that compares a policy with those of other rows (`against`)."""

    policy: str
    against: Annotated[tuple[str, ...], each_once()]

    def _check_together(self) -> None:
        super()._check_together()
        if self.policy in self.against:
            raise RecipeError(f"against names '{self.policy}', which is the 'policy' itself; name other rows")


AnyRow = Recipe | RawRow


@dataclass(frozen=True)
class RowKind:
    """A kind of row.

    Attributes:
        work: whether a row of this kind trains a policy, measures a reward model, compares policies, each by a stage,
            or only names a backbone, which its SFT stage measures. A stage that measures or compares has the kind's
            name.
        settings: type of its fields; None for a recipe.
        needs_pool: whether it reads a pool of the row's backbone's responses; only then may its reward model be of
            another backbone.
    """

    work: Literal["train", "measure", "compare", "name"]
    settings: type[AnyRow] | None = None
    needs_pool: bool = False


ROW_KINDS: dict[str, RowKind] = {
    "reward": RowKind("train"),
    "supervised": RowKind("train"),
    "reward_bench": RowKind("measure", MeasuringRow),
    "best_of_n": RowKind("measure", MeasuringRow, needs_pool=True),
    "second_judge": RowKind("compare", ComparingRow),
    "raw": RowKind("name", RawRow),
}
TRAINING, MEASURING, COMPARING = (
    tuple(name for name, kind in ROW_KINDS.items() if kind.work == work) for work in ("train", "measure", "compare")
)


def parse_row(values: Mapping[str, Any], where: str) -> AnyRow:
    """Returns the typed row of a mapping."""
    kind = values.get("kind", "reward")
    if not isinstance(kind, str) or kind not in ROW_KINDS:
        raise RecipeError(f"{where}: kind is {kind!r}{hint(kind, ROW_KINDS)}")
    made = ROW_KINDS[kind].settings
    return parse_recipe(values, where) if made is None else typed(made, values, where)
