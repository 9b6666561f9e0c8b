"""Settings of aspects, of the models behind them, and of selections.

params/scales/<scale>/aspects.yaml, an entry for each aspect
    aspect: {kind: length}      a kind of `rlhf_core.aspects.choices.ASPECTS` with its options
    normaliser: mean            none, z over the initial policy's pure samples, or mean of the training answers
    positive: true              whether its rewards are above 0 already, so that the gate leaves them as they are
    model: factuality           the trained model behind it, if any: an entry of params/<paper>/aspect_models.yaml
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from rlhf_core.aspects.aspect import SLICERS, Density
from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError, hint
from rlhf_core.evaluation.consistency import SelectionRule
from rlhf_core.models.sampling import DEFAULT_ENGINE, ENGINES
from rlhf_core.typed import Checked, Count, above, at_least, between, each_once, one_of
from tasks.params.parts import LONG_FORM, Need


@dataclass(frozen=True)
class AspectNormaliser:
    """A way to normalise an aspect's values by statistics that the selection records.

    Attributes:
        mean, std: names of the statistics that are subtracted and divided by; without `std` values stay as they are.
        needs_training_answers: whether the selection scores the answers of the training data too (`training_mean`).
        refusal: why values whose `std` is 0 cannot be normalised.
    """

    mean: str | None = None
    std: str | None = None
    needs_training_answers: bool = False
    refusal: str = "constant"


ASPECT_NORMALISERS: Choices[AspectNormaliser] = Choices(
    "aspect normaliser",
    {
        "none": AspectNormaliser(),
        "mean": AspectNormaliser(
            std="training_mean", needs_training_answers=True, refusal="0 on average over the training answers"
        ),
        "z": AspectNormaliser("mean", "std", refusal="constant over the initial policy's samples"),
    },
    needs=("mean", "std", "needs_training_answers", "refusal"),
)


@dataclass(frozen=True)
class AspectSpec(Checked):
    """An entry of aspects.yaml; see the module."""

    aspect: Mapping[str, Any]
    normaliser: Annotated[str, one_of(ASPECT_NORMALISERS)] = "none"
    positive: bool = False
    model: str | None = None

    def _check_together(self) -> None:
        if not isinstance(self.aspect.get("kind"), str):
            raise RecipeError(f"aspect is {dict(self.aspect)}; it must be a mapping, as in {{kind: length}}")


@dataclass(frozen=True)
class AspectModelSpec(Checked):
    """An aspect's model.

    Args:
        aspect: a name among the labels of labelled.*.jsonl, or, for density sequence, of the pairs' files.
        error_weight: weight of wrong slices in the loss.
    """

    title: str
    backbone: str
    aspect: str
    density: Annotated[str, one_of((*(density.value for density in SLICERS), Density.SEQUENCE.value))]
    error_weight: Annotated[float, above(0)] = 1.0

    def _check_together(self) -> None:
        known = ("completeness",) if self.density == Density.SEQUENCE.value else ("relevance", "factuality")
        if self.aspect not in known:
            raise RecipeError(f"aspect is '{self.aspect}', of density '{self.density}'{hint(self.aspect, known)}")

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(LONG_FORM, "aspect", self.aspect),)


@dataclass(frozen=True)
class SelectionEntry(Checked):
    """An entry of selections.yaml: the reward model and aspects that a selection compares.

    Args:
        holistic: the reward model that aspects are compared with.
    """

    title: str
    backbone: str
    holistic: str
    aspects: Annotated[tuple[str, ...], each_once()]
    rule: SelectionRule = field(default_factory=SelectionRule)


@dataclass(frozen=True)
class SelectionScale(Checked):
    """Size of a selection: selection/<data>.yaml of a scale, or its selection.yaml for other data.

    Args:
        prompts: training prompts that are answered twice, None for all.
        max_new_tokens: longest answer; D_p is drawn as policies train, so it is theirs.
        rounds, level: of the bootstrap's intervals.
    """

    prompts: Annotated[int, at_least(2)] | None
    max_new_tokens: Count
    batch: Count = 128
    engine: Annotated[str, one_of(ENGINES)] = DEFAULT_ENGINE
    rounds: Count = 1000
    level: Annotated[float, between(0, 1, open_low=True, open_high=True)] = 0.95
