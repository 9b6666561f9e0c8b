"""Throughput of a SaT model: characters per second, all texts together against one by one.

    python -m benchmarks.segmentation results/testbed/shared/segmenter/sat-3l/result/model TEXTS.jsonl

TEXTS.jsonl holds rows with a field `text`, `response` or `chosen`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rlhf_core.segmentation import SaT
from tasks.running.artifacts import read_jsonl
from tasks.running.stage import prepare_process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rows", type=int, default=500)
    given = parser.parse_args()
    prepare_process()
    rows = read_jsonl(given.texts)[: given.rows]
    texts = list(dict.fromkeys(next(r[name] for name in ("text", "response", "chosen") if name in r) for r in rows))
    segmenter = SaT(given.model)
    segmenter.sentence_ends(["The model is loaded. Now it is measured."])
    letters = sum(map(len, texts))
    seconds = []
    for parts in ([texts], [[text] for text in texts]):
        start = time.process_time()
        for part in parts:
            segmenter.sentence_ends(part)
        seconds.append(time.process_time() - start)
    together, alone = (letters / each for each in seconds)
    print(f"{len(texts)} texts, {letters} characters, {segmenter.batch} windows a batch, processor time")
    print(f"together {together:,.0f} characters/s, one by one {alone:,.0f} characters/s, {together / alone:.1f} x")


if __name__ == "__main__":
    main()
