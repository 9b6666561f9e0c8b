"""Rows by their kind: a recipe that trains a policy, or a row that measures, compares or only names something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import RecipeError, hint
from rlhf_core.recipe import Recipe, parse_recipe
from rlhf_core.typed import Checked
from tasks.params.settings import typed

#: Rows that train a policy.
TRAINING = ("reward", "supervised")
#: Rows that measure a reward model, by a stage of that name.
MEASURING = ("reward_bench", "best_of_n")
#: Rows that compare policies, by a stage of that name.
COMPARING = ("second_judge",)
#: Rows that only name a backbone, which its SFT stage measures.
RAW = "raw"
KINDS = (*TRAINING, *MEASURING, *COMPARING, RAW)


@dataclass(frozen=True)
class MeasuringRow(Checked):
    """A row that measures a reward model.

    Args:
        title: for people.
        kind: one of `MEASURING`.
        backbone: whose data and responses the reward model is measured on.
        reward_model: its name; another paper's is `<paper>/<name>`.
        notes: for people.
    """

    kind: str
    backbone: str
    reward_model: str
    title: str = ""
    notes: str = ""


@dataclass(frozen=True)
class ComparingRow(Checked):
    """A row that compares policies.

    Args:
        title: for people.
        kind: one of `COMPARING`.
        backbone: of the policies.
        policy: the row whose policy is judged.
        against: the rows of its opponents.
        notes: for people.
    """

    kind: str
    backbone: str
    policy: str
    against: tuple[str, ...]
    title: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.against or len(set(self.against)) != len(self.against):
            raise RecipeError(f"against is {list(self.against)}; name at least one row, each once")
        if self.policy in self.against:
            raise RecipeError(f"against names '{self.policy}', which is the 'policy' itself; name other rows")


@dataclass(frozen=True)
class RawRow(Checked):
    """A backbone as it is, under a title of its own."""

    kind: str
    backbone: str
    title: str = ""
    notes: str = ""


AnyRow = Recipe | MeasuringRow | ComparingRow | RawRow


def row_settings(values: Mapping[str, Any], where: str) -> AnyRow:
    """Returns the typed row of a mapping.

    Raises:
        RecipeError: an unknown kind, an unknown or missing field, or a value that its field does not allow.
    """
    kind = values.get("kind", "reward")
    if kind not in KINDS:
        raise RecipeError(f"{where}: kind is {kind!r}{hint(kind, KINDS)}")
    if kind in TRAINING:
        return parse_recipe(values, where)
    cls: type[AnyRow] = MeasuringRow if kind in MEASURING else ComparingRow if kind in COMPARING else RawRow
    return typed(cls, values, where)
