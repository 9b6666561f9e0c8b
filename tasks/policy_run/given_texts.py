"""Training of a policy on given texts: the supervised recipes."""

from __future__ import annotations

from dataclasses import replace

from rlhf_core.stepper import freeze
from rlhf_core.supervised.objectives import objective
from rlhf_core.supervised.recipes import PREFERENCE, Weighted
from tasks.policy_run.run import Learn, PolicyRun, RowTraining, question_accuracies
from tasks.policy_run.solutions import SAMPLES_FILE
from tasks.running.artifacts import read_jsonl
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.result_rows import Metrics
from tasks.running.supervised import fit


def supervised_trainer(row: RowTraining) -> Learn:
    """Returns the trainer of a supervised recipe; settings are checked before models are loaded."""
    settings, folders = row.settings, row.inputs.solutions
    training, learned = settings.supervised_config(row.recipe.optimiser, row.where)

    def learn(run: PolicyRun, checkpoints: RunCheckpoints) -> Metrics:
        preference = row.inputs.data / "preference.train.jsonl"
        file = preference if folders.samples is None else folders.samples / SAMPLES_FILE
        sources = folders.sources(read_jsonl(file) if PREFERENCE in learned.needs else [])
        freeze(run.reference.model)
        kind = str(row.recipe.optimiser["kind"]).rpartition(":")[2]
        examples = learned.examples(sources, run.encoder)
        target = objective(examples, run.policy, run.reference)
        steps, weighted = training.steps(len(target.lengths)), isinstance(examples, Weighted)
        run.evaluator.encoder = replace(run.encoder, opening=learned.opening)

        def measured(step: int) -> dict[str, float]:
            due = settings.evaluated(step, steps, last=True)
            return question_accuracies(run.evaluator, run.policy, settings.checkpoint_prompts) if due else {}

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
        return summary

    return learn
