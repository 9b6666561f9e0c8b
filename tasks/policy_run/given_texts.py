"""Training of a policy on given texts: the supervised recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.data.templates import encode_text
from rlhf_core.stepper import freeze
from rlhf_core.supervised.objectives import objective
from rlhf_core.supervised.recipes import PREFERENCE, Weighted
from tasks.policy_run.hacking_watch import HackingWatch
from tasks.policy_run.run import Learn, PolicyRun, RowTraining, question_accuracies
from tasks.policy_run.solutions import SAMPLES_FILE
from tasks.running.artifacts import read_jsonl
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.result_rows import Metrics
from tasks.running.supervised import fit


@dataclass
class Opened(Encoder):
    """An encoder that adds the first words of the answer to its prompts.

    Args:
        opening: those words, behind which the policy was trained to answer.
    """

    opening: str = ""

    @classmethod
    def of(cls, encoder: Encoder, opening: str) -> Opened:
        return cls(**{f.name: getattr(encoder, f.name) for f in fields(Encoder) if f.init}, opening=opening)

    def prompt(self, row: Mapping[str, Any]) -> list[int]:
        return [*super().prompt(row), *encode_text(self.tokenizer, self.opening)]

    def sequence(self, row: Mapping[str, Any], response: str) -> EncodedSequence:
        given = super().sequence(row, response)
        return EncodedSequence(self.prompt(row), given.response)


def supervised_trainer(row: RowTraining) -> Learn:
    """Returns the trainer of a supervised recipe; settings are checked before models are loaded."""
    training, learned = row.scale.supervised_config(row.recipe.optimiser, row.where)
    folders = row.inputs.solutions

    def learn(run: PolicyRun, checkpoints: RunCheckpoints) -> tuple[Metrics, HackingWatch | None]:
        preference = row.inputs.data / "preference.train.jsonl"
        file = preference if folders.samples is None else folders.samples / SAMPLES_FILE
        sources = folders.sources(read_jsonl(file) if PREFERENCE in learned.needs else [])
        freeze(run.reference.model)
        kind, scale = str(row.recipe.optimiser["kind"]).rpartition(":")[2], row.scale
        examples = learned.examples(sources, run.encoder)
        target = objective(examples, run.policy, run.reference)
        steps, weighted = training.steps(len(target.lengths)), isinstance(examples, Weighted)
        if learned.opening:
            run.evaluator.encoder = Opened.of(run.encoder, learned.opening)

        def measured(step: int) -> dict[str, float]:
            due = scale.evaluated(step, steps, last=True)
            return question_accuracies(run.evaluator, run.policy, scale.checkpoint_prompts) if due else {}

        run.history = fit(
            run.policy.model,
            target,
            training,
            seed=row.seed,
            checkpoints=checkpoints,
            label=f"{kind} {row.recipe.title} seed {row.seed}",
            file=file,
            sides=1 if weighted else 2,
            frozen=[] if run.adapter is not None or weighted else [run.reference.model],
            measured=measured,
        )
        last = run.history[-1]
        summary = {f"{kind}_{name}": last[name] for name in ("loss", "accuracy", "margin") if name in last}
        if isinstance(examples, Weighted):
            summary |= {"examples": len(examples.sequences), "examples_too_long": examples.too_long}
        return summary, None

    return learn
