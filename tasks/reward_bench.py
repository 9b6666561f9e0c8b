"""Stage `reward_bench`: a reward model on RewardBench, or on the testbed's benchmark of the same four sections.

Writes metrics.json (accuracy in percent of each section, weighted as the benchmark does, of each subset, and their
plain mean) and generations.jsonl (each pair with both rewards). Scores that depend on batch size or padding are
refused first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from rlhf_core.data.sources import HuggingFaceSource
from rlhf_core.errors import DataError
from rlhf_core.evaluation.reward_bench import ScoredPair, reward_bench_scores, section_of
from tasks.params.evaluation import RewardBenchSpec
from tasks.running.artifacts import write_json, write_jsonl
from tasks.running.loading import load_world
from tasks.running.stage import PageEntry, stage
from tasks.scoring.reward_models import load_scorer, score_pairs

if TYPE_CHECKING:
    from rlhf_core.testbed import World

VERSION = 2

OOD = "-ood"


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
    scorer = load_scorer(reward_model, data=data, sft=sft, sentences=sentences)
    rows = benchmark_pairs(scale, data)
    pairs = score_pairs(scorer, rows, scale.batch)
    generations = [
        {"benchmark": pair.section, "id": pair.id, "turn": 1, "subset": pair.subset, "prompt": row["prompt"]}
        | {"right": pair.right, "chosen": pair.chosen, "rejected": pair.rejected}
        for row, pair in zip(rows, pairs, strict=True)
    ]
    write_jsonl(result / "generations.jsonl", generations)
    write_json(result / "metrics.json", reward_bench_scores(pairs) | split_scores(pairs))


def benchmark_pairs(spec: RewardBenchSpec, data: Path) -> list[dict[str, Any]]:
    """Returns rows {id, prompt, chosen, rejected, section, subset}.

    Raises:
        DataError: a row without a subset.
    """
    if spec.source == "testbed":
        from rlhf_core.testbed.reward_bench import reward_bench_pairs

        return reward_bench_pairs(cast("World", load_world(data)), spec.pairs, spec.seed)
    source = HuggingFaceSource(spec.sets)
    rows = [row for name in spec.sets for row in source.load(name, "test", "preference")]
    for number, row in enumerate(rows, start=1):
        if "subset" not in row:
            raise DataError("the pair names no subset", row=number, field="subset", remedy="Map it in 'sets'")
    return [{**row, "section": section_of(row["subset"])} for row in rows]


def split_scores(pairs: Sequence[ScoredPair]) -> dict[str, float]:
    """Returns the accuracy in percent of subsets like the training data's and of those beyond it, where a benchmark
    tells."""
    ood = [pair for pair in pairs if pair.subset.endswith(OOD)]
    apart = {"ood": ood, "seen": [pair for pair in pairs if not pair.subset.endswith(OOD)]} if ood else {}
    return {f"{name}_pairs": 100 * sum(p.right for p in part) / max(1, len(part)) for name, part in apart.items()}


main = stage(bench)
