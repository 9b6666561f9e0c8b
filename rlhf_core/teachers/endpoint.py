"""A teacher behind an OpenAI-compatible endpoint; cached, resumable and paid for as judges are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rlhf_core.evaluation.judges.openai_endpoint import EndpointConfig, EndpointJudge
from rlhf_core.evaluation.judges.protocol import JudgeRequest
from rlhf_core.reasoning.rewriting import Correction, WrongSolution
from rlhf_core.reasoning.templates import REWRITTEN
from rlhf_core.teachers.prompts import LOCATE, REWRITE, teacher_prompt


class EndpointTeacher:
    """Asks both questions of every prediction.

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
        texts = self.client.answer(requests)
        return [
            Correction(located, rewrite.strip().removeprefix(REWRITTEN).strip())
            for located, rewrite in zip(texts[::2], texts[1::2], strict=True)
        ]

    def costs(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(self.client.usage).items()}
