"""Answers of a policy, batched by the length of their prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.data.encoding import Encoder
from rlhf_core.data.templates import encode_text
from rlhf_core.models.policy import Policy, pad_rows
from rlhf_core.models.sampling import Sampling, generate

if TYPE_CHECKING:
    pass


def answer(
    policy: Policy,
    encoder: Encoder,
    rows: Sequence[Mapping[str, Any]],
    sampling: Sampling,
    seed: int,
    batch: int,
) -> list[tuple[str, int]]:
    """Returns (text, tokens) of one answer per row, rows batched by prompt length.

    A row's `opening`, where it has one, is how its answer begins; the text is what the policy adds.
    """
    prompts = [
        [*encoder.prompt(row), *(encode_text(encoder.tokenizer, row["opening"]) if row.get("opening") else ())]
        for row in rows
    ]
    order = sorted(range(len(rows)), key=lambda i: len(prompts[i]))
    answers: list[tuple[str, int]] = [("", 0)] * len(rows)
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        ids, mask = pad_rows([prompts[i] for i in chosen], encoder.pad_id, "left")
        made = generate(policy, ids.to(policy.device), mask.to(policy.device), sampling, generator)
        for row, i in enumerate(chosen):
            tokens = made.ids[row][made.mask[row]].tolist()
            answers[i] = (str(encoder.tokenizer.decode(tokens, skip_special_tokens=True)), len(tokens))
    return answers
