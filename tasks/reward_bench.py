"""Stage `reward_bench`: a reward model on RewardBench, or on the testbed's benchmark of the same four sections.

Writes metrics.json (accuracy in percent of each section, weighted as the benchmark does, of each subset, and their
plain mean) and generations.jsonl (each pair with both rewards). Scores that depend on batch size or padding are
refused first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from rlhf_core.data.sources import HuggingFaceSource
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.reward_bench import ScoredPair, reward_bench_scores, section_of
from tasks.params.evaluation import RewardBenchSpec
from tasks.running.artifacts import write_json, write_jsonl
from tasks.running.loading import load_world
from tasks.running.stage import PageEntry, stage
from tasks.scoring.reward_models import RewardModelInputs, load_scorer, score_pairs

#: Increment it when the code changes the result; DVC then runs the stage again.
VERSION = 1

OOD = "-ood"


def benchmark_pairs(spec: RewardBenchSpec, data: Path) -> list[dict[str, Any]]:
    """Returns rows {id, prompt, chosen, rejected, section, subset}.

    Raises:
        RecipeError: the testbed's benchmark for other data.
        DataError: a row without a subset.
    """
    if spec.source == "testbed":
        world = load_world(data)
        from rlhf_core.testbed import World
        from rlhf_core.testbed.reward_bench import reward_bench_pairs

        if not isinstance(world, World):
            raise RecipeError(
                "source 'testbed' needs the testbed's dialogues; models of other data need source 'huggingface'"
            )

        return reward_bench_pairs(world, spec.pairs, spec.seed)
    sets = spec.sets
    source = HuggingFaceSource(sets)
    rows = [row for name in sets for row in source.load(name, "test", "preference")]
    for number, row in enumerate(rows, start=1):
        if "subset" not in row:
            raise DataError("the pair names no subset", row=number, field="subset", remedy="Map it in 'sets'")
    return [{**row, "section": section_of(row["subset"])} for row in rows]


def split_scores(pairs: Sequence[ScoredPair]) -> dict[str, float]:
    """Returns the accuracy in percent of subsets like the training data's and of those beyond it, where a benchmark
    tells."""
    apart = {"ood": [p for p in pairs if p.subset.endswith(OOD)], "seen": []}
    if not apart["ood"]:
        return {}
    apart["seen"] = [pair for pair in pairs if not pair.subset.endswith(OOD)]
    return {f"{name}_pairs": 100 * sum(p.right for p in part) / max(1, len(part)) for name, part in apart.items()}


def bench(
    scale: Annotated[RewardBenchSpec, PageEntry("benchmark spec (YAML)")],
    data: Path,
    sft: Path,
    entropies: Path | None,
    reward_model: Path,
    result: Path,
    sentences: Path | None = None,
) -> None:
    """Measures a reward model on the benchmark."""
    scorer = load_scorer(reward_model, RewardModelInputs(data, sft, sentences, entropies))
    rows = benchmark_pairs(scale, data)
    pairs = score_pairs(scorer, rows, scale.batch)
    named = zip(rows, pairs, strict=True)
    generations = [
        {"benchmark": pair.section, "id": pair.id, "turn": 1, "subset": pair.subset, "prompt": row["prompt"]}
        | {"right": pair.right, "chosen": pair.chosen, "rejected": pair.rejected}
        for row, pair in named
    ]
    write_jsonl(result / "generations.jsonl", generations)
    write_json(result / "metrics.json", reward_bench_scores(pairs) | split_scores(pairs))


main = stage(bench)
