"""Stage `reward_bench`: a reward model on RewardBench, or on the testbed's benchmark of the same four sections.

Writes metrics.json (accuracy in percent of each section, weighted as the benchmark does, of each subset, and their
plain mean) and generations.jsonl (each pair with both rewards). Scores that depend on batch size or padding are
refused first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rlhf_core.data.sources import HubSet, HuggingFaceSource
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.reward_bench import ScoredPair, check_independence, reward_bench_scores, section_of
from tasks.evaluating.reward_models import Scorer, TrainedScorer, Upstream
from tasks.params.pages import Address, read_settings
from tasks.params.settings import typed
from tasks.running.artifacts import check_version, stage_output, write_json, write_jsonl
from tasks.running.loading import load_world
from tasks.running.stage import command_line, run_stage, set_threads

VERSION = 1
STAGE = "reward_bench"

#: Responses with which the independence of scores is checked.
PROBES = 8
OOD = "-ood"

Row = dict[str, Any]


@dataclass(frozen=True)
class RewardBenchSpec:
    """A benchmark of reward models.

    Args:
        source: 'testbed' generates one from the world of the data, 'huggingface' loads one.
        pairs: of 'testbed', pairs of each subset.
        seed: of 'testbed'.
        sets: of 'huggingface', {name: `HubSet`} whose split `test` holds pairs with their `subset`.
        batch: responses per forward pass.
    """

    source: str
    pairs: int = 100
    seed: int = 0
    sets: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 64

    def __post_init__(self) -> None:
        if self.source not in ("testbed", "huggingface"):
            raise RecipeError(f"source is '{self.source}'; known: testbed, huggingface")
        if (self.source == "huggingface") != bool(self.sets):
            raise RecipeError(f"source '{self.source}' with {len(self.sets)} sets: 'sets' belong to huggingface")
        if self.pairs < 1 or self.batch < 1:
            raise RecipeError(f"pairs is {self.pairs} and batch {self.batch}; both must be at least 1")


def benchmark_pairs(spec: RewardBenchSpec, data: Path) -> list[Row]:
    """Rows {id, prompt, chosen, rejected, section, subset}.

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
    sets = {name: typed(HubSet, options, f"sets: {name}") for name, options in spec.sets.items()}
    source = HuggingFaceSource(sets)
    rows = [row for name in sets for row in source.load(name, "test", "preference")]
    for number, row in enumerate(rows, start=1):
        if "subset" not in row:
            raise DataError("the pair names no subset", row=number, field="subset", remedy="Map it in 'sets'")
    return [{**row, "section": section_of(row["subset"])} for row in rows]


def score_pairs(scorer: Scorer, rows: Sequence[Mapping[str, Any]], batch: int) -> list[ScoredPair]:
    """Both responses of every pair scored, after the check that scores do not depend on their batch.

    Args:
        scorer: the reward model.
        rows: {id, prompt, chosen, rejected, section, subset}.
        batch: responses per forward pass.

    Raises:
        NumericsError: scores that depend on their batch.
    """
    by_length = sorted(rows, key=lambda row: len(row["chosen"]))
    step = max(1, (len(by_length) - 1) // (PROBES - 1))
    probes = [row for row in by_length[::step] for _ in (0, 1)][: 2 * PROBES]
    texts = [row["rejected" if i % 2 else "chosen"] for i, row in enumerate(probes)]
    check_independence(scorer, probes, texts)
    chosen = [row["chosen"] for row in rows]
    scores = scorer([*rows, *rows], [*chosen, *(row["rejected"] for row in rows)], batch)
    return [
        ScoredPair(str(row["id"]), row["section"], row["subset"], good, bad)
        for row, good, bad in zip(rows, scores[: len(rows)], scores[len(rows) :], strict=True)
    ]


def split_scores(pairs: Sequence[ScoredPair]) -> dict[str, float]:
    """Accuracy in percent of subsets like the training data's and of those beyond it, where a benchmark tells."""
    apart = {"ood": [p for p in pairs if p.subset.endswith(OOD)], "seen": []}
    if not apart["ood"]:
        return {}
    apart["seen"] = [pair for pair in pairs if not pair.subset.endswith(OOD)]
    return {f"{name}_pairs": 100 * sum(p.right for p in part) / max(1, len(part)) for name, part in apart.items()}


def bench(
    scale_path: Annotated[Address, "benchmark spec (YAML)"],
    data: Path,
    sft: Path,
    entropies: Path | None,
    reward_model: Path,
    out: Path,
    version: int | None = None,
    sentences: Path | None = None,
) -> None:
    """Measures a reward model on the benchmark."""
    check_version(STAGE, VERSION, version)
    set_threads()
    spec = typed(RewardBenchSpec, read_settings(scale_path), str(scale_path))
    given = [path for path in (entropies, sentences) if path is not None]
    with stage_output(
        out, stage=STAGE, version=VERSION, inputs=[scale_path, data, sft, reward_model, *given]
    ) as result:
        scorer = TrainedScorer.load(reward_model, Upstream(data, sft, sentences, entropies))
        rows = benchmark_pairs(spec, data)
        pairs = score_pairs(scorer, rows, spec.batch)
        named = zip(rows, pairs, strict=True)
        generations = [
            {"benchmark": pair.section, "id": pair.id, "turn": 1, "subset": pair.subset, "prompt": row["prompt"]}
            | {"right": pair.right, "chosen": pair.chosen, "rejected": pair.rejected}
            for row, pair in named
        ]
        write_jsonl(result / "generations.jsonl", generations)
        write_json(result / "metrics.json", reward_bench_scores(pairs) | split_scores(pairs))


main = command_line(bench)


if __name__ == "__main__":
    run_stage(main)
