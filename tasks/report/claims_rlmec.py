"""What *Improving Large Language Models via Fine-grained RL with Minimum Editing Constraint* says of its results.

Accuracies are of the testbed's questions; a claim about a reward model reads its own metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_core.published.row_map import recipe_row
from tasks.report.claims import Claim, Derived, Number, Part, Results, claims_figure, rows_named
from tasks.report.figure_data import FigureData
from tasks.report.measurements import TableRuns
from tasks.report.outputs import ResultTree, StageOutput

#: The SFT LLM of each task and size, by the prefix of its rows.
BACKBONES = {"qa-": "rlmec-qa", "math-": "rlmec-math", "qa-13b-": "rlmec-qa-13b", "math-13b-": "rlmec-math-13b"}
#: Test sets that training does not see, by task.
UNSEEN = {"qa": ("obqa", "arc"), "math": ("svamp", "mm")}
#: Columns of Table 4.
ABLATED = {"qa-13b-": ("ecqa", "arc"), "math-13b-": ("gsm8k", "mm")}
#: Baselines that both tasks and both sizes have.
BASELINES = ("sft", "rft", "rft-gt", "rft-td", "rft-rd", "coh", "dpo", "vanilla-ppo")
#: Points within which a reward model's rewrites and its teacher's are right alike.
ALIKE = 5.0
#: Rows of claims that are reward models or teachers: {name: (group, kind, name of the result)}.
MODELS = {
    **{f"{task} rewrites": ("rlmec", "generative_reward_model", task) for task in UNSEEN},
    **{f"{task} ground truth": ("shared", "teacher", f"rlmec-{task}") for task in UNSEEN},
}


def _percent(metric: str) -> Derived:
    return lambda output: 100 * output.metrics[metric] if metric in output.metrics else None


def last_train_accuracy(output: StageOutput) -> float | None:
    """Accuracy on training questions at the end of training, in percent (Figure 3)."""
    found = [float(row["train_accuracy"]) for row in output.history if row.get("train_accuracy") is not None]
    return found[-1] if found else None


def steps_to_answer(output: StageOutput) -> float | None:
    """Mean steps between the first error of wrong solutions and their answer (Figure 5)."""
    wrong = [row for row in output.generations if row.get("right") is False and row.get("first_error") is not None]
    distances = [max(0, int(row["steps"]) - 1 - int(row["first_error"])) for row in wrong]
    return sum(distances) / len(distances) if distances else None


DERIVED: dict[str, Derived] = {
    "last_train_accuracy": last_train_accuracy,
    "steps_to_answer": steps_to_answer,
    "credit AUC": _percent("credit_auc"),
    "rewrites right": _percent("rewrite_accuracy"),
    "teacher's rewrites right": _percent("teacher_rewrite_accuracy"),
}


#: Metrics that a claim names otherwise than by their own name.
WORDS = {
    "last_train_accuracy": "on training questions",
    "steps_to_answer": "steps to the answer",
    "edit_distance": "tokens edited",
    "teacher_edit_distance": "tokens that the teacher edits",
}


def _of(row: str, metric: str = "average") -> Number:
    return Number(row, metric, row if metric == "average" else f"{row}, {WORDS.get(metric, metric)}")


def _above(row: str, *others: str, metric: str = "average") -> list[Part]:
    """A row stands above each of the others."""
    return [Part(_of(row, metric), "above", _of(other, metric)) for other in others]


def _below(row: str, *others: str, metric: str = "average") -> list[Part]:
    return [Part(_of(row, metric), "below", _of(other, metric)) for other in others]


def _ablations(prefix: str, metric: str, *names: str) -> list[Part]:
    """RLMEC stands above its ablations in a column."""
    return _above(f"{prefix}rlmec", *(f"{prefix}{name}" for name in names), metric=metric)


def _leads(prefix: str) -> list[str]:
    """The baselines of a task and size."""
    only = {"qa-": ("figa", "ppo-a2c"), "math-": ("ppo-a2c",), "qa-13b-": ("figa",), "math-13b-": ()}
    return [f"{prefix}{name}" for name in (*BASELINES, *only[prefix])]


def _rewrites(task: str) -> list[Part]:
    """The reward model edits less than its teacher and both far less than a new solution would."""
    own, truth = f"{task} rewrites", f"{task} ground truth"
    distances = [_of(own, metric) for metric in ("edit_distance", "teacher_edit_distance")]
    whole = Number(truth, "ground_truth_edit_distance", truth)
    return [Part(distances[0], "below", distances[1]), *(Part(distance, "below", whole) for distance in distances)]


def _as_right(task: str) -> Part:
    own = f"{task} rewrites"
    return Part(
        Number(own, "rewrites right", own), "beside", Number(own, "teacher's rewrites right", "the teacher's"), ALIKE
    )


def claims() -> list[Claim]:
    """The paper's claims in its own order, the ordering of the methods first."""
    unseen = [
        part
        for prefix, backbone in BACKBONES.items()
        for name in UNSEEN[prefix.split("-")[0]]
        for part in _above(f"{prefix}rlmec", backbone, metric=name)
    ]
    return [
        Claim(
            "RLMEC outperforms the other methods on the average of both tasks",
            "§5.2, Table 3",
            [part for prefix in BACKBONES for part in _above(f"{prefix}rlmec", *_leads(prefix))],
        ),
        Claim(
            "SFT loses on unseen sets",
            "§5.2, Table 3",
            [*_below("qa-sft", "rlmec-qa", metric="obqa"), *_below("math-sft", "rlmec-math", metric="svamp")],
        ),
        Claim("RLMEC gains on every unseen set", "§5.2, Table 3", unseen),
        Claim(
            "DPO helps on question answering and harms on mathematics",
            "§5.2, Table 3",
            [*_above("qa-dpo", "rlmec-qa"), *_below("math-dpo", "rlmec-math")],
        ),
        Claim(
            "The finer the supervision, the better: vanilla PPO, PPO A2C, RLMEC",
            "§5.2, Table 3",
            [
                part
                for prefix in ("qa-", "math-")
                for part in (
                    *_above(f"{prefix}ppo-a2c", f"{prefix}vanilla-ppo"),
                    *_above(f"{prefix}rlmec", f"{prefix}ppo-a2c"),
                )
            ],
        ),
        Claim(
            "On question answering every part is needed",
            "§5.3, Table 4",
            [
                part
                for metric in ABLATED["qa-13b-"]
                for part in _ablations("qa-13b-", metric, "without-tls", "without-tls-rl", "without-ir")
            ],
        ),
        Claim(
            "In mathematics, without token-level supervision the seen set gains and the unseen one loses",
            "§5.3, Table 4",
            [
                part
                for name in ("math-13b-without-tls", "math-13b-without-tls-rl")
                for part in (
                    *_above(name, "math-13b-rlmec", metric="gsm8k"),
                    *_below(name, "math-13b-rlmec", metric="mm"),
                )
            ],
        ),
        Claim(
            "Without imitation all tasks lose",
            "§5.3, Table 4",
            [
                part
                for prefix, columns in ABLATED.items()
                for metric in columns
                for part in _ablations(prefix, metric, "without-ir")
            ],
        ),
        Claim(
            "RLMEC fits the training set better than RFT and DPO",
            "§5.3, Figure 3",
            _above("qa-rlmec", "qa-rft", "qa-dpo", metric="last_train_accuracy"),
        ),
        Claim("The reward model edits even less than its teacher", "B.1, Figure 4", _rewrites("qa")),
        Claim("Its rewrites are right as often as the teacher's", "B.1, Figure 4", [_as_right("qa")]),
        Claim(
            "A reward model from the policy's own backbone is the better one",
            "B.2, Table 7",
            [
                *_above("qa-rlmec", "qa-rlmec-grm-13b"),
                *_above("math-rlmec", "math-rlmec-grm-13b"),
                *_above("qa-13b-rlmec", "qa-13b-rlmec-grm-7b"),
                *_above("math-13b-rlmec", "math-13b-rlmec-grm-7b"),
            ],
        ),
        Claim(
            "After RLMEC the first error appears later",
            "B.3, Figure 5",
            [
                *_below("qa-rlmec", "rlmec-qa", metric="steps_to_answer"),
                *_below("math-rlmec", "rlmec-math", metric="steps_to_answer"),
            ],
        ),
        Claim(
            "RLMEC's token rewards tell wrong tokens better than PPO's",
            "C.1, Table 8",
            [
                part
                for task in UNSEEN
                for part in _above(f"{task}-rlmec", f"{task}-ppo-a2c", f"{task}-vanilla-ppo", metric="credit AUC")
            ],
        ),
    ]


def results_of(tree: ResultTree, made: Sequence[Claim]) -> Results:
    """The runs that claims name, each read once."""
    outputs: Mapping[str, Mapping[int, StageOutput]] = {
        row: tree.outputs(*MODELS[row]) if row in MODELS else tree.of(recipe_row("rlmec", row))
        for row in rows_named(made)
    }
    return Results(TableRuns(outputs, {}), DERIVED)


def paper_claims(tree: ResultTree) -> FigureData:
    """What the paper says and whether it was borne out."""
    made = claims()
    return claims_figure(
        made,
        results_of(tree, made),
        numbers="Numbers are accuracies in percent on the average of the test sets, means over seeds, unless named "
        "otherwise.",
        alike="Rewrites are right alike when the 90 % interval of their difference over seeds lies within "
        f"{ALIKE:g} points.",
        needs="the rows of Table 3",
    )
