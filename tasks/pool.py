"""Stage `pool`: one greedy answer and a pool of sampled ones of a model to every benchmark prompt.

Writes responses.jsonl (a row per prompt) and metrics.json. Every reward model's Best-of-N is chosen from it. Source:
Sentence, appendix B.2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rlhf_core.models.sampling import Sampling
from tasks.evaluating.policies import answer
from tasks.params.evaluation import PoolSpec
from tasks.running.artifacts import first_rows, read_jsonl, write_json, write_jsonl
from tasks.running.loading import load_encoder, load_policy
from tasks.running.result_rows import PooledAnswers
from tasks.running.stage import PageEntry, stage

VERSION = 2


def draw_pool(
    scale: Annotated[PoolSpec, PageEntry("pool settings (YAML)")],
    data: Path,
    sft: Path,
    seed: int,
    result: Path,
) -> None:
    """Answers the benchmarks' prompts greedily and by sampling."""
    sampling = scale.sampling
    greedy = Sampling(sampling.max_new_tokens, temperature=0, engine=sampling.engine)
    encoder = load_encoder(data, sft / "model")
    policy = load_policy(sft / "model", encoder)
    rows: list[PooledAnswers] = []
    metrics: dict[str, float] = {}
    for name in scale.benchmarks:
        file = data / "benchmarks" / f"{name}.jsonl"
        items = first_rows(read_jsonl(file), scale.prompts, "prompts", file)
        asked = [{**item, "prompt": item["turns"][0]} for item in items]
        first = answer(policy, encoder, asked, greedy, seed, scale.batch)
        repeated = [item for item in asked for _ in range(scale.samples)]
        drawn = answer(policy, encoder, repeated, sampling, seed, scale.batch)
        for place, (item, (text, _)) in enumerate(zip(items, first, strict=True)):
            own = drawn[place * scale.samples : (place + 1) * scale.samples]
            row: PooledAnswers = {
                "benchmark": name,
                "id": item["id"],
                "prompt": item["turns"][0],
                "meta": item["metas"][0],
                "greedy": text,
                "samples": [sample for sample, _ in own],
            }
            if "messages" in item:
                row["messages"] = item["messages"]
            rows.append(row)
        distinct = [len(set(row["samples"])) for row in rows if row["benchmark"] == name]
        metrics |= {
            f"{name}_distinct": sum(distinct) / max(1, len(distinct)),
            f"{name}_tokens": sum(tokens for _, tokens in drawn) / max(1, len(drawn)),
        }
    write_jsonl(result / "responses.jsonl", rows)
    write_json(result / "metrics.json", metrics)


main = stage(draw_pool)
