"""Checks a scale without weights: shapes, trained parameters and memory per GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.data.encoding import Limits
from rlhf_core.errors import RecipeError
from rlhf_core.models.architecture import known_configuration
from rlhf_core.models.forecast import GIB, OVERHEAD, Sharding, policy_run, supervised
from rlhf_core.models.loading import on_meta, trainable
from rlhf_core.models.lora import Adapter, LoraSettings
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.typed import typed
from tasks.graph.check import refuse
from tasks.graph.rows import RowSpec, models_of, read_rows, selection_of
from tasks.graph.scale import Scale
from tasks.params.backbone import BackboneSpec
from tasks.params.pages import read_settings
from tasks.params.policy import PolicyScale
from tasks.params.scales import scale_entries

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class StageMemory:
    """Memory that a stage needs.

    Attributes:
        backbone, stage: which.
        trained: parameters by trained model.
        gpu: bytes on each GPU by purpose; `total` adds a tenth.
        host: bytes of the CPU's memory per rank.
        gpu_hours: of one seed, by the model of `rlhf_core.models.forecast`.
        spared: bytes on each GPU that gradient checkpointing would spare.
    """

    backbone: str
    stage: str
    trained: dict[str, int]
    gpu: dict[str, float]
    host: float
    gpu_hours: float = 0.0
    spared: float = 0.0

    @property
    def total(self) -> float:
        return OVERHEAD * sum(self.gpu.values())

    @property
    def least(self) -> float:
        """Returns the total with gradient checkpointing, which is on where the total does not fit."""
        return self.total - OVERHEAD * self.spared

    def fit(self, gpu_gb: float) -> str:
        """Returns in words whether a GPU of so many GiB has room; empty where not."""
        if self.total <= gpu_gb * GIB:
            return "fits"
        return "fits, layers recomputed" if self.least <= gpu_gb * GIB else ""


#: Rows of the train splits that the scales' data specs name, as their hubs state them.
TRAIN_ROWS = {
    "hendrydong/preference_700K": 700_000,
    "HuggingFaceH4/ultrafeedback_binarized": 61_135,
    "Anthropic/hh-rlhf": 160_800,
    "Unified-Language-Model-Alignment/Anthropic_HH_Golden": 42_500,
}
#: Average length of a row, or of a sampled response, as a share of its limit.
LENGTH_SHARE = 0.25


def expected_rows(spec: Mapping[str, Any]) -> float:
    """Returns the training pairs of a data spec on a hub, of sets with known sizes; 0 of a folder's."""
    from datasets import ReadInstruction

    total = 0.0
    for name in spec.get("preference", ()) if "sets" in spec else ():
        part = spec["sets"][name]
        split = str(part["splits"]["train"])
        whole = {split.partition("[")[0]: TRAIN_ROWS.get(part["path"], 0)}
        total += sum(one.to - one.from_ for one in ReadInstruction.from_spec(split).to_absolute(whole))
    return total


def check_scale(root: Path, scale: str, sharding: Sharding, paper: str = "segment") -> list[StageMemory]:
    """Returns the training stages of every backbone of a scale that the rows of a paper load: SFT, reward model, and of
    its policies the one that needs most.

    Raises:
        RecipeError: a setting that the stages would refuse, a model of unknown sizes, or shapes that do not fit.
    """
    known, wrong = read_rows(root, paper)
    refuse(wrong.values())
    rows = [row for row in known.values() if row.kind == "reward"]
    here, found, data_sets = Scale(root, scale), list[StageMemory](), scale_entries(root, scale, "data")
    for name, path in sorted(scale_entries(root, scale, "backbones").items()):
        spec: BackboneSpec = here.settings.get(path)
        own = [row for row in rows if row.backbone == name]
        if spec.source is None or not own:
            continue
        data = read_settings(data_sets[spec.data].under(root))
        limits, pairs = typed(Limits, data["limits"], f"{spec.data}: limits"), expected_rows(data)
        by_device = spec.precision is None and sharding.stage is None  # DeepSpeed's configuration says it itself
        lies = replace(sharding, bf16=sharding.bf16 or spec.precision == "bf16" or by_device)
        backbone = _Backbone(name, spec, known_configuration(spec.source), limits, lies)
        if spec.training is not None:
            found.append(_supervised(backbone, "sft", spec.training, pairs))
        if any(row.reward_models for row in own):
            at = here.stage_settings("reward_model", f"{paper}-{spec.data}", paper)
            training = here.settings.get(at)
            if isinstance(training, TrainingConfig):
                found.append(_supervised(backbone, "reward_model", training, pairs))
        found.append(max((_policy(here, row, backbone) for row in own), key=lambda stage: stage.total))
    if not found:
        raise RecipeError(f"scale '{scale}' loads no model; check a scale that does: small or paper")
    return found


@dataclass(frozen=True)
class _Backbone:
    """A backbone of a scale, and the distribution of its models over the GPUs."""

    name: str
    spec: BackboneSpec
    config: PreTrainedConfig
    limits: Limits
    sharding: Sharding
    _adapters: dict[LoraSettings, int] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> int:
        return trainable(on_meta(self.config))

    @cached_property
    def scalar(self) -> int:
        """Returns parameters of a reward model or critic."""
        with torch.device("meta"):
            return trainable(ScalarModel.from_language_model(on_meta(self.config)))

    def adapters(self, lora: LoraSettings) -> int:
        """Returns parameters of a policy's adapters; many rows have the same ones."""
        if lora not in self._adapters:
            adapted = on_meta(self.config)
            Adapter(adapted, lora)
            self._adapters[lora] = trainable(adapted)
        return self._adapters[lora]


def _supervised(backbone: _Backbone, stage: str, training: TrainingConfig, rows: float) -> StageMemory:
    """Returns SFT, or a reward model, of which a pair is two rows."""
    sharding, total = backbone.sharding, backbone.limits.total
    parameters, each = (backbone.scalar, 2) if stage == "reward_model" else (backbone.parameters, 1)
    gpu, host = sharding.trained(parameters)
    per_rank = min(training.microbatch, -(training.batch // -sharding.ranks)) * each
    stated, tokens = training.gradient_checkpointing, per_rank * total
    kept, least = (sharding.activations(backbone.config, tokens, recomputed=again) for again in (bool(stated), True))
    parts = {"trained": gpu, "activations": kept}
    work = supervised(parameters, training.seen(rows) * each, 1.0, LENGTH_SHARE * total)
    made = {"reward_model" if each == 2 else "model": parameters}
    spared = 0.0 if stated is False else kept - least
    return StageMemory(backbone.name, stage, made, parts, host, work.gpu_hours(), spared)


def _policy(here: Scale, row: RowSpec, backbone: _Backbone) -> StageMemory:
    """Returns a reward row's policy by its own settings; adapters are trained where it says so."""
    config, limits, sharding, recipe = backbone.config, backbone.limits, backbone.sharding, row.spec
    where = here.policy_settings(row, backbone.spec.data)
    scale: PolicyScale = here.settings.get(where)
    settings = scale.optimiser_config(recipe.optimiser, where)
    prompt, response = scale.prompt_limit or limits.prompt, limits.total - limits.prompt
    if not settings.fixed_samples:
        response = scale.sampling_config(where).max_new_tokens
    selection = selection_of(here.settings, row)
    aspects = here.aspects(selection) if selection else ()
    trained_aspects = [at for at in aspects if here.settings.get(at).model is not None]
    policy = backbone.parameters if recipe.lora is None else backbone.adapters(recipe.lora)
    scorers = backbone.scalar * (len(models_of(here.settings, row)) + len(trained_aspects))
    trained = {"policy": policy} | ({"critic": backbone.scalar} if settings.has_critic else {})
    sizes = [sharding.trained(parameters) for parameters in trained.values()]
    at_once = min(settings.microbatch, -(settings.minibatch // -sharding.ranks)) * (prompt + response)
    sampled = min(settings.rollout_batch, scale.generation_batch or settings.rollout_batch)
    rollouts = 0 if settings.fixed_samples else -(sampled // -sharding.ranks) * (prompt + response)
    cached = max(sharding.whole(parameters) for parameters in trained.values()) + sharding.cache(config, rollouts)
    stated = settings.gradient_checkpointing
    kept, least = (
        max(cached, sharding.activations(config, at_once, recomputed=again)) for again in (bool(stated), True)
    )
    parts = {
        "trained": sum(gpu for gpu, _ in sizes),
        # the reference, or the adapted weights, which are the reference too
        "frozen": sharding.bytes * float(backbone.parameters + scorers),
        "rollout or update": kept,
    }
    work = policy_run(
        backbone.parameters,
        trained.get("critic", 0),
        backbone.parameters + scorers,
        responses=settings.iterations * settings.rollout_batch,
        epochs=settings.epochs,
        prompt=LENGTH_SHARE * prompt,
        response=LENGTH_SHARE * response,
    )
    stage, host = f"policy ({recipe.optimiser['kind']})", sum(h for _, h in sizes)
    spared = 0.0 if stated is False else kept - least
    return StageMemory(backbone.name, stage, trained, parts, host, work.gpu_hours(), spared)
