"""Settings of reward models, of what is fitted to them, and of generative reward models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from rlhf_core.data.encoding import Limits
from rlhf_core.errors import RecipeError
from rlhf_core.models.sampling import Sampling
from rlhf_core.normalisers import NORMALISERS
from rlhf_core.reasoning.rewriting import RewriteLimits
from rlhf_core.reasoning.templates import TEMPLATES
from rlhf_core.reasoning.token_rewards import RewardRanges
from rlhf_core.recipe import ReadOut
from rlhf_core.rewards.aggregation import build_aggregation
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.rewards.zero_shot import ZeroShotSettings
from rlhf_core.segmentation.segmenters import check_stated_segmenter, segmenter_class
from rlhf_core.shaping.choices import CONSTANTS
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.typed import (
    Checked,
    Count,
    Seed,
    Share,
    above,
    accepted_by,
    between,
    check_given,
    each_once,
    init_fields,
    one_of,
    typed,
)
from tasks.params.pages import overrides
from tasks.params.parts import PAIRS, TRAINED, Need

#: Material that a reward model learns from: pairs of the backbone's data, or of sampled solutions.
PREFERENCE, SAMPLES = "preference", "samples"


@dataclass(frozen=True)
class RewardModelSpec(Checked):
    """A reward model: how responses are cut into segments, and how segment rewards become a preference.

    Args:
        segmenter: `{kind: entropy, cutoff: "1.75"}` and the like.
        aggregation: of the segment rewards, by name or with options, `{kind: differential_attention, dim: 256}`.
        loss: on the aggregated rewards, by name or with options, `{kind: bradley_terry, regularisation: 0.005}`.
        end_token: whether the token `<END>` is inserted behind every sentence, to be read there (segmenter sat only).
        learning_rate_share: of the scale's learning rate; WARM's models have rates of their own.
        seed_offset: added to the run's seed, so that models of one run differ in initial heads and order of pairs.
        data: the data set whose pairs it learns from, None for the backbone's.
        references: how its reference rewards are drawn, by name; None for the scale's own way.
        pairs: it learns from 'preference' pairs of the backbone's data, or from pairs of sampled solutions ('samples').
    """

    title: str
    backbone: str
    segmenter: Annotated[Mapping[str, Any], accepted_by(check_stated_segmenter)]
    aggregation: Annotated[str | Mapping[str, Any], accepted_by(build_aggregation)]
    loss: Annotated[str | Mapping[str, Any], accepted_by(build_loss)]
    end_token: bool = False
    learning_rate_share: Annotated[float, above(0)] = 1.0
    seed_offset: Seed = 0
    data: str | None = None
    references: str | None = None
    pairs: Annotated[str, one_of((PREFERENCE, SAMPLES))] = PREFERENCE

    def _check_together(self) -> None:
        found = segmenter_class(self.segmenter)
        if self.end_token and not hasattr(found, "sentence_ends"):
            raise RecipeError("end_token: end tokens follow sentences; use a segmenter of kind sat")
        if self.data is not None and (found.needs_entropies or hasattr(found, "of_stage") or self.pairs == SAMPLES):
            raise RecipeError(
                f"data is '{self.data}', but entropies, SaT sentences and pairs of samples come from the "
                "backbone's data; leave 'data' out"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(PAIRS, "pairs", self.pairs),)


@dataclass(frozen=True)
class MergeSpec(Checked):
    """A reward model that is the average of others.

    Args:
        data: the data set whose pairs they learn from, None for the backbone's.
        references: as of a `RewardModelSpec`.
    """

    title: str
    backbone: str
    merge: Annotated[tuple[str, ...], each_once(2)]
    data: str | None = None
    references: str | None = None

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(TRAINED, "merge", list(self.merge)),)


@dataclass(frozen=True)
class GivenSpec(Checked):
    """A trained reward model of the user's own.

    Args:
        backbone: whose SFT model its words are; of a Hugging Face classifier, whose data its normalisers are fitted to.
        given: a folder with the model in `model/`, or with a Hugging Face classifier.
        data: the data set of its normaliser's pairs, None for the backbone's.
        references: as of a `RewardModelSpec`.
    """

    title: str
    backbone: str
    given: str
    data: str | None = None
    references: str | None = None


def check_whole_responses(readout: ReadOut, where: str, name: str) -> None:
    """Refuses to read the reward model `name`, a Hugging Face classifier, otherwise than by its one reward of a
    response."""
    kind = readout.segmenter.get("kind")
    stated = (("read", readout.read, "aggregate"), ("segmenter.kind", kind, "bandit"), ("head", readout.head, "reward"))
    for field_, value, right in stated:
        if value != right:
            raise RecipeError(
                f"{where}: readout.{field_} is '{value}', but reward model '{name}' is a Hugging Face classifier, "
                f"which rewards whole responses; use '{right}'"
            )


#: Specs that a file of params/<paper>/reward_models/ may hold.
AnyRewardModel = RewardModelSpec | MergeSpec | GivenSpec


def reward_model_spec(values: Mapping[str, Any], where: str) -> AnyRewardModel:
    """Returns the typed reward model of a file's mapping: trained, an average of others, or given."""
    kinds: tuple[tuple[str, type[AnyRewardModel]], ...] = (("merge", MergeSpec), ("given", GivenSpec))
    return typed(next((cls for name, cls in kinds if name in values), RewardModelSpec), values, where)


@dataclass(frozen=True)
class ZeroShotScale(Checked):
    """Settings of reward models that are not trained at a scale: the model that rewards answers instead."""

    zero_shot: ZeroShotSettings

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(PAIRS, "zero_shot.model", self.zero_shot.model),)


def reward_model_scale(values: Mapping[str, Any], where: str) -> TrainingConfig | ZeroShotScale:
    """Returns the typed settings of a scale's reward models: how they are trained, or what is asked instead."""
    kind: type[TrainingConfig] | type[ZeroShotScale] = ZeroShotScale if "zero_shot" in values else TrainingConfig
    found: TrainingConfig | ZeroShotScale = typed(kind, values, where)
    return found


@dataclass(frozen=True)
class NormaliserSpec(Checked):
    """Settings for fitting normalisers. Both regressions are fitted; a row's `estimator` selects one.

    Args:
        pairs: preference pairs of the calibration set, both responses of each.
        floor_fraction: floor of Std(p) as a share of the pooled standard deviation.
        min_samples: location bins with fewer segments are dropped and counted.
        drawn: at random from the training pairs, the same ones each time; else the first ones, which serves where
            their order is random already.
        own: normalisers of the user's own that are fitted, too, each `module:name`.
    """

    pairs: Count
    floor_fraction: Annotated[float, between(0, 1, open_low=True)] = 0.1
    min_samples: Count = 2
    drawn: bool = False
    own: tuple[Annotated[str, one_of(NORMALISERS)], ...] = ()

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(PAIRS, "pairs", self.pairs),)


@dataclass(frozen=True)
class ReferencesSpec(Checked):
    """Settings for drawing reference responses and for reading a shaping's constants at this scale.

    Args:
        responses: M, for each training prompt.
        prompts: training prompts that have them, from the first on, None for all; as in the policy's settings.
        prompt_limit: most tokens of a prompt, None for the data's own limit; as in the policy's settings.
        constants: which statement of a constant holds where a row has both: 'value' (as the paper has it) or 'sft'
            (in units of these responses' rewards and lengths).
    """

    sampling: Sampling
    responses: Count = 10
    prompts: Count | None = None
    batch: Count = 256
    prompt_limit: Count | None = None
    constants: Annotated[str, one_of(CONSTANTS)] = "sft"

    def _check_together(self) -> None:
        self.sampling.refuse_copies(self.responses, "responses")


@dataclass(frozen=True)
class GenerativeModelSpec(Checked):
    """A generative reward model.

    Args:
        training: values over the scale's, by numbers or as `{times: 2}` of them, where these are not `fixed`.
    """

    title: str
    backbone: str
    training: Mapping[str, Any] = field(default_factory=dict)

    def _check_together(self) -> None:
        known = init_fields(TrainingConfig)
        for name, value in self.training.items():
            if name not in known or not isinstance(value, Mapping):
                check_given(TrainingConfig, {name: value}, "training.")


@dataclass(frozen=True)
class GenerativeModelScale(Checked):
    """Settings for training and using a generative reward model at one scale.

    Args:
        limits: in tokens, of a prompt with its answer.
        header: 'paper' for the printed instructions, 'short' for models of the testbed's size.
        held_out: share of the questions that it does not learn from and is measured on.
        least_accuracy: of held-out rewrites, else the stage stops (`Stopped`).
        negative, positive: where rewards of wrong and right predictions are clipped.
        fixed: whether `training` holds for every model, whatever its own file says.
        gold: whether the model's rewrites are the questions' own solutions instead, marked as gold; for rehearsals,
            whose random models rewrite nothing rightly.
    """

    training: Mapping[str, Any]
    limits: Limits
    max_new_tokens: Count
    header: Annotated[str, one_of(tuple(TEMPLATES))] = "paper"
    held_out: Annotated[float, between(0, 1, open_low=True, open_high=True)] = 0.1
    least_accuracy: Share = 0.6
    rewrites: RewriteLimits = field(default_factory=RewriteLimits)
    negative: tuple[float, float] = (-0.1, 0.0)
    positive: tuple[float, float] = (0.0, 0.5)
    batch: Count = 128
    fixed: bool = False
    gold: bool = False

    def _check_together(self) -> None:
        typed(TrainingConfig, self.training, "training")
        RewardRanges(self.negative, self.positive)

    def training_config(self, model: GenerativeModelSpec, where: str) -> TrainingConfig:
        """Returns the training settings of a model."""
        own = {} if self.fixed else overrides(model.training, self.training)
        return typed(TrainingConfig, {**self.training, **own}, f"{where}: training")
