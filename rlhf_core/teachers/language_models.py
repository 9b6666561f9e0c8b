"""Teachers that are language models, behind an OpenAI-compatible endpoint or in this process, and their prompts.

Prompts have annotated exemplars before the question. Source: RLMEC, section 4.1 and Table 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import yaml

from rlhf_core.data.encoding import Encoder
from rlhf_core.evaluation.judges.openai_endpoint import EndpointConfig, EndpointJudge
from rlhf_core.evaluation.judges.templates import JudgeRequest
from rlhf_core.models.policy import Policy, pad_rows
from rlhf_core.models.sampling import Sampling, generate
from rlhf_core.reasoning.rewriting import Correction, WrongSolution
from rlhf_core.reasoning.steps import CORRECT
from rlhf_core.reasoning.templates import REWRITTEN, TEACHER
from rlhf_core.services import AnswerCache, digest

#: Kinds of request: the first wrong step, and the rewritten solution.
LOCATE, REWRITE = "locate_error", "rewrite_solution"
_DIVIDER = "\n\n"


@cache
def exemplars(task: str) -> list[Mapping[str, Any]]:
    """Returns the annotated exemplars of a task {problem, solution, prediction, step, rewrite}.

    A correct prediction has neither step nor rewrite.
    """
    known = yaml.safe_load(files("rlhf_core.teachers").joinpath("exemplars.yaml").read_text(encoding="utf-8"))
    return list(known[task])


def teacher_prompt(kind: str, wrong: WrongSolution) -> str:
    """Returns the prompt of a teacher of a kind (`LOCATE`, `REWRITE`): solved exemplars of the task, then the question
    in the same form."""
    fill = TEACHER.locating if kind == LOCATE else TEACHER.rewriting
    task = "multiple_choice" if wrong.question.get("choices") else "mathematics"
    shown = [
        fill(item["problem"], item["solution"], item["prediction"]) + answer
        for item in exemplars(task)
        if (answer := _answer(kind, item)) is not None
    ]
    asked = fill(wrong.question["prompt"], wrong.question["solution"], wrong.prediction)
    return _DIVIDER.join([*shown, asked])


def _answer(kind: str, item: Mapping[str, Any]) -> str | None:
    """Returns the answer to an exemplar's prediction; None if the prediction is correct but was to be rewritten."""
    if kind == REWRITE:
        return item.get("rewrite")
    return f"[{item['step']}]" if "step" in item else CORRECT


def _corrections(texts: Sequence[str]) -> list[Correction]:
    """Returns the corrections of answers to both prompts of each prediction in turn."""
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return [Correction(located, rewrite.strip().removeprefix(REWRITTEN).strip()) for located, rewrite in pairs]


class EndpointTeacher:
    """Asks an endpoint both questions of every prediction; cached, resumable and paid for as judges are.

    Args:
        config: where and how to ask.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.client, self.name = EndpointJudge(config), config.model

    def correct(self, wrong: Sequence[WrongSolution]) -> list[Correction]:
        """Returns one correction for each.

        Raises:
            JudgeError: a wrong address, key or model, or a call that failed for good; what was answered is cached.
        """
        requests = [
            JudgeRequest(f"{each.id}/{kind}", teacher_prompt(kind, each), (), kind)
            for each in wrong
            for kind in (LOCATE, REWRITE)
        ]
        return _corrections(self.client.answer(requests))

    def costs(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(self.client.usage).items()}


class LocalTeacher:
    """A language model in this process: asked the same prompts, answered greedily, cached by prompt.

    Args:
        policy: the model.
        encoder: its tokenizer, template and limits.
        name: of the model, part of a cached answer's key.
        cache: file of answers; None keeps them in memory.
        max_new_tokens: longest answer.
        batch: prompts answered at a time.
    """

    def __init__(
        self, policy: Policy, encoder: Encoder, name: str, cache: Path | None, max_new_tokens: int, batch: int = 16
    ) -> None:
        self.policy, self.encoder, self.name = policy, encoder, name
        self.cache = AnswerCache(cache)
        self.sampling, self.batch = Sampling(max_new_tokens, temperature=0), batch
        self.counts = {"calls": 0.0, "from_cache": 0.0, "input_tokens": 0.0, "output_tokens": 0.0}

    def correct(self, wrong: Sequence[WrongSolution]) -> list[Correction]:
        """Returns one correction for each."""
        texts = self._answers([teacher_prompt(kind, each) for each in wrong for kind in (LOCATE, REWRITE)])
        return _corrections(texts)

    def _answers(self, prompts: Sequence[str]) -> list[str]:
        keys = [
            digest({"model": self.name, "prompt": text, "tokens": self.sampling.max_new_tokens}) for text in prompts
        ]
        self.counts["from_cache"] += sum(self.cache.get(key) is not None for key in keys)
        missing = {key: text for key, text in zip(keys, prompts, strict=True) if self.cache.get(key) is None}
        encoded = {key: self.encoder.prompt({"prompt": text}) for key, text in missing.items()}
        order = sorted(encoded, key=lambda key: len(encoded[key]))
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            for key, text in zip(chosen, self._generate([encoded[key] for key in chosen]), strict=True):
                self.cache.put(key, text, model=self.name)
        return [str((self.cache.get(key) or {})["text"]) for key in keys]

    def _generate(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        ids, mask = pad_rows(prompts, self.encoder.pad_id, "left")
        device = self.policy.device
        made = generate(self.policy, ids.to(device), mask.to(device), self.sampling, torch.Generator())
        self.counts["calls"] += len(prompts)
        self.counts["input_tokens"] += float(mask.sum())
        self.counts["output_tokens"] += float(made.mask.sum())
        rows = zip(made.ids.cpu(), made.mask.cpu(), strict=True)
        return [str(self.encoder.tokenizer.decode(row[real].tolist(), skip_special_tokens=True)) for row, real in rows]

    def costs(self) -> dict[str, float]:
        return dict(self.counts)
