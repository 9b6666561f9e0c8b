"""Checks a scale without weights: shapes, trained parameters, memory per GPU, and the DeepSpeed configuration."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.data.truncation import Limits
from rlhf_core.errors import RecipeError
from rlhf_core.models.cost import policy_run, supervised
from rlhf_core.models.memory import GIB, OVERHEAD, Sharding, known_configuration, on_meta, scalar_on_meta, trainable
from rlhf_core.recipe import parse_recipe
from rlhf_core.recipe import reward_models as reward_models_of
from rlhf_core.supervised.training import TrainingConfig
from tasks.policy_settings import PolicyScale
from tasks.rows import load_rows
from tasks.settings import read_settings, typed
from tasks.sft import BackboneSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class StageMemory:
    """What a stage needs.

    Attributes:
        backbone, stage: which.
        trained: parameters by trained model.
        gpu: bytes on each GPU by purpose; `total` adds a tenth.
        host: bytes of the CPU's memory per rank.
        gpu_hours: of one seed, by the model of `rlhf_core.models.cost`.
    """

    backbone: str
    stage: str
    trained: dict[str, int]
    gpu: dict[str, float]
    host: float
    gpu_hours: float = 0.0

    @property
    def total(self) -> float:
        return OVERHEAD * sum(self.gpu.values())


#: Rows of the train splits that the scales' data specs name, as their hubs state them.
TRAIN_ROWS = {
    "hendrydong/preference_700K": 700_000,
    "HuggingFaceH4/ultrafeedback_binarized": 61_135,
    "Unified-Language-Model-Alignment/Anthropic_HH_Golden": 42_500,
}
#: What a row has of its limit, and a sampled response of its own, on average.
LENGTH_SHARE = 0.25
SLICE = re.compile(r"\[(-?\d+)?(%)?:(-?\d+)?(%)?\]$")


def expected_rows(spec: Mapping[str, Any]) -> float:
    """Training pairs of a data spec on a hub, of sets with known sizes."""
    total = 0.0
    for name in spec.get("preference", ()):
        part = spec["sets"][name]
        whole, split = TRAIN_ROWS.get(part["path"], 0), str(part["splits"]["train"])
        found = SLICE.search(split)
        begin, end = 0.0, float(whole)
        if found:
            first, first_share, last, last_share = found.groups()
            begin = _place(first, first_share, whole) if first else 0.0
            end = _place(last, last_share, whole) if last else float(whole)
        total += max(0.0, end - begin)
    return total


def _place(number: str, share: str | None, whole: int) -> float:
    place = float(number) * (whole / 100 if share else 1)
    return place if place >= 0 else whole + place


def check_scale(root: Path, scale: str, sharding: Sharding, paper: str = "segment") -> list[StageMemory]:
    """The training stages of every backbone of a scale that the rows of a paper load.

    Raises:
        RecipeError: a setting that the stages would refuse, a model of unknown sizes, or shapes that do not fit.
    """
    folder = root / "params" / "scales" / scale
    if not folder.is_dir():
        raise RecipeError(f"no scale '{scale}' in {folder.parent}")
    found: list[StageMemory] = []
    used = {row.backbone for row in load_rows(root, paper).values() if row.kind == "reward"}
    for path in sorted((folder / "backbones").glob("*.yaml")):
        spec = typed(BackboneSpec, read_settings(path), str(path))
        if spec.source is None or path.stem not in used:
            continue
        config = known_configuration(spec.source)
        lies = replace(sharding, bf16=sharding.bf16 or spec.precision == "bf16")
        data = read_settings(folder / "data" / f"{spec.data}.yaml")
        limits, rows = typed(Limits, data["limits"], f"{spec.data}: limits"), expected_rows(data)
        training = spec.training_config(str(path))
        if training is not None:
            found.append(_supervised(path.stem, "sft", config, training, limits, lies, rows, scalar=False))
        own = folder / "reward_model" / f"{paper}.yaml"
        where = own if own.exists() else folder / "reward_model.yaml"
        reward_training = typed(TrainingConfig, read_settings(where), str(where))
        found.append(_supervised(path.stem, "reward_model", config, reward_training, limits, lies, rows, scalar=True))
        found.append(_policy(root, folder, paper, path.stem, config, limits, lies))
    if not found:
        raise RecipeError(f"scale '{scale}' loads no model; only such scales are checked (small, paper)")
    return found


def _supervised(
    backbone: str, stage: str, config: PreTrainedConfig, training: TrainingConfig, limits: Limits, sharding: Sharding,
    rows: float, *, scalar: bool,
) -> StageMemory:  # fmt: skip
    model = on_meta(config)
    parameters = trainable(scalar_on_meta(model) if scalar else model)
    gpu, host = sharding.trained(parameters)
    per_rank = min(training.microbatch, -(training.batch // -sharding.ranks)) * (2 if scalar else 1)
    parts = {"trained": gpu, "activations": sharding.activations(config, per_rank * limits.total)}
    if limits.total > config.max_position_embeddings:
        raise RecipeError(
            f"{backbone}: {limits.total} tokens, but the model has {config.max_position_embeddings} places"
        )
    # a pair is two rows
    work = supervised(parameters, rows * (2 if scalar else 1), training.epochs, LENGTH_SHARE * limits.total)
    made = {"reward_model" if scalar else "model": parameters}
    return StageMemory(backbone, stage, made, parts, host, work.gpu_hours())


def _policy(
    root: Path, folder: Path, paper: str, backbone: str, config: PreTrainedConfig, limits: Limits, sharding: Sharding
) -> StageMemory:
    """The largest reward recipe of the paper's rows on this backbone."""
    where = folder / "policy" / "ppo.yaml"
    scale = typed(PolicyScale, read_settings(where), str(where))
    rows = {path: read_settings(path) for path in sorted((root / "params" / paper / "rows").glob("*.yaml"))}
    recipes = [parse_recipe(row, str(path)) for path, row in rows.items() if row["backbone"] == backbone]
    recipe = max((r for r in recipes if r.kind == "reward"), key=lambda r: len(reward_models_of(r)))
    settings = scale.optimiser_config(recipe.optimiser, str(where))
    sampling = scale.sampling_config(str(where))
    length = (scale.prompt_limit or limits.prompt) + sampling.max_new_tokens
    if length > config.max_position_embeddings:
        raise RecipeError(f"{backbone}: {length} tokens, but the model has {config.max_position_embeddings} places")
    model = on_meta(config)
    scalar = trainable(scalar_on_meta(model))
    trained = {"policy": trainable(model)} | ({"critic": scalar} if settings.has_critic else {})
    sizes = [sharding.trained(parameters) for parameters in trained.values()]
    at_once = min(settings.microbatch, -(settings.minibatch // -sharding.ranks)) * length
    rollouts = (
        -(min(settings.rollout_batch, scale.generation_batch or settings.rollout_batch) // -sharding.ranks) * length
    )
    gathered = max(sharding.whole(parameters) for parameters in trained.values())
    parts = {
        "trained": sum(gpu for gpu, _ in sizes),
        "frozen": sharding.bytes * float(trained["policy"] + scalar * len(reward_models_of(recipe))),
        "rollout or update": max(gathered + sharding.cache(config, rollouts), sharding.activations(config, at_once)),
    }
    work = policy_run(
        trained["policy"],
        trained.get("critic", 0),
        trained["policy"] + scalar * len(reward_models_of(recipe)),
        responses=settings.iterations * settings.rollout_batch,
        epochs=settings.epochs,
        prompt=LENGTH_SHARE * (scale.prompt_limit or limits.prompt),
        response=LENGTH_SHARE * sampling.max_new_tokens,
    )
    stage, host = f"policy ({recipe.optimiser['kind']})", sum(h for _, h in sizes)
    return StageMemory(backbone, stage, trained, parts, host, work.gpu_hours())


def check_deepspeed(config: dict[str, Any], ranks: int) -> None:
    """Lets DeepSpeed itself read a configuration, as the stages complete it.

    Raises:
        RecipeError: what it says.
    """
    from rlhf_core.zero import completed, import_deepspeed

    import_deepspeed()
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        DeepSpeedConfig({**completed(config, 1.0), "train_batch_size": 1})
    except Exception as error:
        raise RecipeError(f"DeepSpeed refuses the configuration: {str(error).splitlines()[0]}") from None


def report(root: Path, scale: str, deepspeed: Path | None, ranks: int, gpu_gb: float) -> int:
    """Prints the check; returns how many stages do not fit a GPU of `gpu_gb` GiB."""
    from rich.console import Console
    from rich.table import Table

    from tasks.launch import read_deepspeed

    config = None if deepspeed is None else read_deepspeed(deepspeed)
    if config is not None:
        check_deepspeed(config, ranks)
    stages = check_scale(root, scale, Sharding.of(ranks, config))
    how = "DDP, float32" if deepspeed is None else deepspeed.name
    table = Table(title=f"{scale}: {ranks} GPU(s), {how}; GiB on each", box=None, pad_edge=False)
    for column in (
        "backbone",
        "stage",
        "trained parameters",
        "memory",
        "total",
        f"of {gpu_gb:g}",
        "host per rank",
        "GPU hours",
    ):
        table.add_column(column, overflow="fold")
    for stage in stages:
        table.add_row(
            stage.backbone,
            stage.stage,
            ", ".join(f"{name} {count / 1e9:.3f} B" for name, count in stage.trained.items()),
            ", ".join(f"{name} {size / GIB:.1f}" for name, size in stage.gpu.items()),
            f"{stage.total / GIB:.1f}",
            "fits" if stage.total / GIB <= gpu_gb else "[red]too much[/]",
            f"{stage.host / GIB:.1f}",
            f"{stage.gpu_hours:.0f}",
        )
    Console(width=140 if not os.isatty(sys.stdout.fileno()) else None).print(table)
    return sum(stage.total / GIB > gpu_gb for stage in stages)
