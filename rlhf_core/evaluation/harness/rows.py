"""Rows of tasks of lm-evaluation-harness: in the columns of the task's own data set, or of this project's questions.

A row of a question (`question`, `choices`, `answer`, `answer_index`) becomes a row of the columns that the task file
reads. What a local copy lacks is not made up, with two exceptions, which follow from how the copies were made:

1. HellaSwag: the begun sentence (`ctx_b`) is the rest of the context behind its last full stop where that rest starts
   in lower case, which it does in rows of ActivityNet.
2. GSM8K: `answer` is the solution, with its calculator marks where the copy keeps them, and the line `#### n`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

from rlhf_core.errors import DataError

Row = dict[str, Any]
_BEGUN = re.compile(r"(.*[.!?])\s+([^A-Z\s].*)", re.DOTALL)


@dataclass(frozen=True)
class RowForm:
    """Columns of a data set that tasks of the harness read.

    Attributes:
        columns: those that every row has.
        of_question: makes such a row of a question.
        splits: {split of the data set: what a local copy may call it, too}.
        part: column that holds the configuration's name, where all configurations are in one local file.
    """

    columns: tuple[str, ...]
    of_question: Callable[[Mapping[str, Any]], Row]
    splits: Mapping[str, str] = field(default_factory=dict)
    part: str | None = None


def _arc(row: Mapping[str, Any]) -> Row:
    labels = list(ascii_uppercase[: len(row["choices"])])
    return {
        "id": row["id"],
        "question": row["question"],
        "choices": {"text": list(row["choices"]), "label": labels},
        "answerKey": labels[row["answer_index"]],
    }


def _hellaswag(row: Mapping[str, Any]) -> Row:
    begun = _BEGUN.fullmatch(row["question"])
    before, after = begun.groups() if begun else (row["question"], "")
    return {
        "activity_label": row["category"],
        "ctx_a": before,
        "ctx_b": after,
        "endings": list(row["choices"]),
        "label": str(row["answer_index"]),
    }


def _winogrande(row: Mapping[str, Any]) -> Row:
    first, second = row["choices"]
    return {"sentence": row["question"], "option1": first, "option2": second, "answer": str(row["answer_index"] + 1)}


def _mmlu(row: Mapping[str, Any]) -> Row:
    return {**{key: row[key] for key in ("question", "subject", "choices")}, "answer": row["answer_index"]}


def _truthfulqa(row: Mapping[str, Any]) -> Row:
    right = row["answer_index"]
    single = [row["choices"][right], *(text for i, text in enumerate(row["choices"]) if i != right)]
    return {
        "question": row["question"],
        "mc1_targets": {"choices": single, "labels": [1] + [0] * (len(single) - 1)},
        "mc2_targets": {"choices": list(row["mc2_choices"]), "labels": list(row["mc2_labels"])},
    }


def _gsm8k(row: Mapping[str, Any]) -> Row:
    solution = row.get("solution_annotated") or row["solution"]
    return {"question": row["question"], "answer": f"{solution}\n#### {row['answer']}"}


#: Forms by the data set that task files name.
FORMS: Mapping[str, RowForm] = {
    "allenai/ai2_arc": RowForm(("question", "choices", "answerKey"), _arc),
    "Rowan/hellaswag": RowForm(("activity_label", "ctx_a", "ctx_b", "endings", "label"), _hellaswag),
    "allenai/winogrande": RowForm(("sentence", "option1", "option2", "answer"), _winogrande),
    "cais/mmlu": RowForm(("question", "choices", "answer"), _mmlu, {"dev": "train"}, "subject"),
    "truthfulqa/truthful_qa": RowForm(("question", "mc1_targets", "mc2_targets"), _truthfulqa),
    "openai/gsm8k": RowForm(("question", "answer"), _gsm8k),
}


def in_columns(rows: Sequence[Mapping[str, Any]], data_set: str, file: str) -> list[Row]:
    """Returns local rows in the columns of a task's data set.

    Args:
        rows: of one split, with those columns, or questions of this project.
        data_set: its hub id, as the task file names it.
        file: the rows' file, for messages.

    Raises:
        DataError: a row without a column, or a question from which a column cannot be made.
    """
    form = FORMS.get(data_set)
    if form is None:
        return [dict(row) for row in rows]
    # a question of GSM8K has both columns of the original, too
    questions = bool(rows) and not {"answer_index", "solution"}.isdisjoint(rows[0])
    made = []
    for number, row in enumerate(rows, start=1):
        try:
            found = form.of_question(row) if questions else {**row}
            for column in form.columns:
                found[column]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            missing = str(error).strip("'")
            raise DataError(
                f"the row does not have what {data_set} asks for ({type(error).__name__}: {missing})",
                file=file,
                row=number,
                field=missing if isinstance(error, KeyError) else None,
                remedy=f"Give the columns {', '.join(form.columns)}, or a question with choices and answer_index",
            ) from None
        made.append(found)
    return made
