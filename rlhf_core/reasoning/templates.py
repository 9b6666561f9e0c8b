"""Prompts for teachers and generative reward models: locating the first wrong step, rewriting with least edits.

`PAPER` has the words of RLMEC, Table 6, `SHORT` a header for models of the testbed's size. In a teacher's rewriting
prompt the paper's Table 5 prints the erroneous solution in the place of the correct one; here the correct one stands
there, as in Table 6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlhf_core.reasoning.steps import labelled

_LOCATE = (
    "Given the problem, correct solution and the prediction from language models. The method in prediction might be "
    "different with correct solution, but it is also correct. You need to identify which step of the prediction is the "
    "first wrong step, and write down the label of the first wrong step."
)
_REWRITE = (
    "Given the problem and the correct solution, you need to correct the mistakes in prediction to get the correct "
    "answer. You should make minimal modifications."
)
_ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n"
)
_FIELDS = "Problem: {problem}\nCorrect solution: {solution}\nPrediction: {prediction}\n"
_WHICH = (
    "Which step of prediction is error? Only write down the label of the first wrong step. If the prediction is "
    "correct, you need to write down correct. You should not write down any other words."
)
REWRITTEN = "Correct prediction:"


@dataclass(frozen=True)
class PromptTemplate:
    """The prompts of both tasks, with the slots {problem}, {solution} and {prediction}.

    Attributes:
        locate, rewrite: of each task.
        whole: whether they are complete prompts, which no chat template wraps.
    """

    locate: str
    rewrite: str
    whole: bool = False

    def locating(self, problem: str, solution: str, prediction: str) -> str:
        """Returns the locating prompt; steps of the solution and the prediction are labelled."""
        return _filled(self.locate, problem, labelled(solution), labelled(prediction))

    def rewriting(self, problem: str, solution: str, prediction: str) -> str:
        """Returns the rewriting prompt, up to where `Correct prediction:` begins."""
        return _filled(self.rewrite, problem, solution, prediction)


def _filled(template: str, problem: str, solution: str, prediction: str) -> str:
    texts = {"problem": problem, "solution": solution, "prediction": prediction}
    return re.sub(r"\{(problem|solution|prediction)\}", lambda slot: texts[slot[1]], template)


PAPER = PromptTemplate(
    locate=_ALPACA.replace("{instruction}", _LOCATE) + _FIELDS + "\n### Response:\n",
    rewrite=_ALPACA.replace("{instruction}", _REWRITE) + _FIELDS + "\n### Response:\n",
    whole=True,
)
SHORT = PromptTemplate(
    locate="Find the first error step.\n{problem}\nCorrect solution:\n{solution}\nPrediction:\n{prediction}",
    rewrite="Make minimal modifications.\n{problem}\nCorrect solution:\n{solution}\nPrediction:\n{prediction}",
)
TEACHER = PromptTemplate(locate=f"{_LOCATE}\n\n{_FIELDS}{_WHICH}\n", rewrite=f"{_REWRITE}\n\n{_FIELDS}{REWRITTEN}")
TEMPLATES = {"paper": PAPER, "short": SHORT}


def template_words(template: PromptTemplate) -> list[str]:
    """Returns texts that hold every character that the prompts and their answers are written with."""
    shown = [template.locating("", "0. 1.", "2. 3."), template.rewriting("", "4. 5.", "6. 7.")]
    return [*shown, f"{REWRITTEN}\n[8] [9]", "The first error step is [0]", "correct"] * 40
