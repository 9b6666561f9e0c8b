"""Record types: what each field of a row must hold, and checks over whole rows; tables of them are pandera's.

A field's fault is a few words, the same words for the same fault. An absent field and JSON `null` are both missing.
Fields that a type does not name are kept untouched. Whole rows are checked where every field is good.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

import pydantic

from rlhf_core.data.dialogue import asks_prompt, check_messages
from rlhf_core.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import pandera.pandas as pa

Record = dict[str, Any]
#: Characters of a text; a longer one takes minutes to tokenise and no model reads it.
LONGEST_TEXT = 1_000_000
#: Choices of a question; answers name them by the letters A to Z.
MOST_CHOICES = 26
#: Characters that are neither white space nor printed in ASCII.
_PERHAPS_MARK = re.compile(r"[^ -~\s]")


# --- fields ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """A field of a record type.

    Args:
        fault: the problem of a present value, in a few words; None for a good one.
        required: whether the field must be there.
    """

    fault: Callable[[Any], str | None]
    required: bool = True

    def __call__(self, value: Any) -> str | None:
        """Returns the problem of a value, None for a good one."""
        if value is None:
            return "missing" if self.required else None
        return self.fault(value)


def _any_text(value: Any) -> str | None:
    if not isinstance(value, str):
        return "not text"
    return f"longer than {LONGEST_TEXT:,} characters" if len(value) > LONGEST_TEXT else None


def _text(value: Any) -> str | None:
    if isinstance(value, str) and not any(not char.isspace() and not _is_mark(char) for char in value):
        return "empty"
    return _any_text(value)


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in ("Cf", "Cc")


def _seen(text: str) -> str:
    """Returns a text without invisible marks, such as a zero-width space, and without white space at its ends."""
    return _PERHAPS_MARK.sub(lambda found: "" if _is_mark(found[0]) else found[0], text).strip()


def _number(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not a number"
    try:
        return None if math.isfinite(value) else "not finite"
    except OverflowError:  # a whole number beyond any float
        return "not finite"


def _choices(value: Any) -> str | None:
    if isinstance(value, list) and len(value) > MOST_CHOICES:
        return f"more than {MOST_CHOICES} choices, the letters A to Z; remove wrong ones"
    return _SEVERAL_TEXTS(value)


def _messages(value: Any) -> str | None:
    """Returns the problem of a dialogue that cannot be answered."""
    try:
        check_messages(value)
        good = sum(len(one["content"]) for one in value) <= LONGEST_TEXT
    except (DataError, TypeError, AttributeError):
        good = False
    form = "not a list of mappings with role (system, user, assistant) and content, the last one of the user"
    return None if good and isinstance(value, list) else f"{form}, of at most {LONGEST_TEXT:,} characters"


def _history(value: Any) -> str | None:
    """Returns the problem of messages that no prompt can follow."""
    good = isinstance(value, list) and _messages([*value, {"role": "user", "content": ""}]) is None
    return None if good else "not a list of mappings with role (system, user, assistant) and content"


def _of_type(kind: Any, reason: str, *, required: bool = True) -> Field:
    """Returns the field of a type, as pydantic reads it without conversions."""
    adapter = pydantic.TypeAdapter(kind)

    def fault(value: Any) -> str | None:
        try:
            adapter.validate_python(value, strict=True)
        except pydantic.ValidationError:
            return reason
        return None

    return Field(fault, required)


NotBlank = Annotated[str, pydantic.Field(pattern=r"\S")]
Texts = list[NotBlank]
SomeTexts = Annotated[Texts, pydantic.Field(min_length=1)]
_SEVERAL_TEXTS = _of_type(Annotated[Texts, pydantic.Field(min_length=2)], "not two or more texts")
Span = Annotated[list[int], pydantic.Field(min_length=2, max_length=2)]


class FeedbackError(pydantic.BaseModel):
    """A span of an answer that is wrong."""

    kind: str = pydantic.Field(alias="error type")
    start: int
    end: int


class Feedback(pydantic.BaseModel):
    """Feedback on an answer, as QA-Feedback has it."""

    errors: list[FeedbackError]
    missing_info: list[Any]


def unwritable_field(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the first field that no file could hold, with the reason; None where all can be written."""
    for name, value in record.items():
        try:
            json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except UnicodeEncodeError:
            return str(name).encode("ascii", "replace").decode(), "holds a lone surrogate, which no encoding can write"
        except RecursionError:
            return name, "nested too deeply"
        except ValueError:
            return name, "not finite"
    return None


# --- whole rows, whose fields are good -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowCheck:
    """A check over a whole row.

    Args:
        passes: whether a row is good; fields that are not required may be None.
        field: the field that a reader should look at.
        reason: what is wrong, in a few words.
    """

    passes: Callable[[Mapping[str, Any]], bool]
    field: str
    reason: str


def _index_names_answer(row: Mapping[str, Any]) -> bool:
    choices, index = row["choices"], row["answer_index"]
    return None in (choices, index) or (0 <= index < len(choices) and choices[index] == row["answer"])


def _spans_fit(row: Mapping[str, Any]) -> bool:
    ends = [0, *(position for span in row["sentence_spans"] for position in span)]
    return ends == sorted(ends) and ends[-1] <= len(row["text"])


def _errors_fit(row: Mapping[str, Any]) -> bool:
    longest = len(row["predictions"][0])
    return all(0 <= error["start"] < error["end"] <= longest for error in row["feedback"]["errors"])


def _asks_its_prompt(row: Mapping[str, Any]) -> bool:
    """Returns whether a row's messages, where it has any, ask what the judge reads: its prompt, or its first turn."""
    prompt = row["turns"][0] if "turns" in row else row["prompt"]
    return row["messages"] is None or asks_prompt(row["messages"], prompt)


# --- record types ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordType:
    """One kind of record.

    Args:
        name: its name.
        fields: those that it names, in the order in which faults are told.
        checks: over whole rows; of rows with the same id the later ones are bad.
    """

    name: str
    fields: Mapping[str, Field]
    checks: tuple[RowCheck, ...] = ()

    @property
    def required(self) -> tuple[str, ...]:
        """Returns the names of the fields that every row has."""
        return tuple(name for name, field in self.fields.items() if field.required)

    @cached_property
    def schema(self) -> pa.DataFrameSchema:
        """Returns the schema of a table's fields: object columns, None where a field is missing."""
        import pandera.pandas as pa

        def column(field: Field) -> pa.Column:
            good = pa.Check(lambda value: field(value) is None, element_wise=True, ignore_na=False)
            return pa.Column(object, good, nullable=True, required=field.required)

        return pa.DataFrameSchema({name: column(field) for name, field in self.fields.items()}, name=self.name)

    @cached_property
    def row_schema(self) -> pa.DataFrameSchema:
        """Returns the schema of a table's rows, where all fields are good; an error is "field: reason"."""
        import pandera.pandas as pa

        def by_row(check: RowCheck) -> pa.Check:
            error = f"{check.field}: {check.reason}"
            return pa.Check(lambda frame: _each(frame, check.passes), ignore_na=False, error=error)

        unique = pa.Check(lambda frame: ~frame["id"].map(repr).duplicated(), error="id: duplicate id")
        return pa.DataFrameSchema(checks=[*map(by_row, self.checks), unique], name=self.name)


def _each(frame: pd.DataFrame, passes: Callable[[Mapping[str, Any]], bool]) -> pd.Series[bool]:
    import pandas as pd

    names = list(frame.columns)
    found = [passes(dict(zip(names, values, strict=True))) for values in frame.itertuples(index=False, name=None)]
    return cast("pd.Series[bool]", pd.Series(found, index=frame.index, dtype=bool))


_TEXT, _OPTIONAL_TEXT, _NUMBER = Field(_text), Field(_any_text, required=False), Field(_number, required=False)
#: Fields that every record of a prompt may have.
_OF_PROMPTS = {"messages": Field(_messages, required=False), "history": Field(_history, required=False)}
_SAME_PROMPT = RowCheck(
    _asks_its_prompt, "messages", "the last message is not the prompt, and the prompt is not the dialogue as text"
)
_TEXTS, _TEXT_OR_TEXTS = "not a list of non-empty texts", "neither a text nor a list of non-empty texts"
_QUESTION = {"id": _TEXT, "question": _TEXT}
#: An empty list of passages is a question for which retrieval found nothing (QA-Feedback has some).
_PASSAGES = _of_type(list[SomeTexts], "not a list of passages, each [title, sentence, ...]")

# The order settles ties in `infer_record_type`: the most specific type first.
_TYPES = (
    RecordType(
        "preference",
        {"id": _TEXT, "prompt": _TEXT, "chosen": _TEXT, "rejected": _TEXT}
        | dict.fromkeys(("label", "score_chosen", "score_rejected", "preference", "margin"), _NUMBER)
        | {**_OF_PROMPTS, "source": _TEXT},
        (
            RowCheck(lambda row: _seen(row["chosen"]) != _seen(row["rejected"]), "rejected", "identical responses"),
            _SAME_PROMPT,
        ),
    ),
    RecordType(
        "translation",
        dict.fromkeys(("id", "source_lang", "target_lang", "source_text", "target_text", "source"), _TEXT),
    ),
    RecordType(
        "feedback",
        {
            **_QUESTION,
            "passages": _PASSAGES,
            "gold_answer": _OPTIONAL_TEXT,
            "predictions": _of_type(SomeTexts, _TEXTS),
            "feedback": _of_type(Feedback, "not a mapping of errors (with error type, start and end) and missing_info"),
            "source": _TEXT,
        },
        (RowCheck(_errors_fit, "feedback", "an error's span lies outside the first prediction"),),
    ),
    RecordType(
        "code",
        {
            **_QUESTION,
            "solution": _TEXT,
            "tests": _of_type(NotBlank | SomeTexts, _TEXT_OR_TEXTS),
            "entry_point": _OPTIONAL_TEXT,
            "source": _TEXT,
        },
    ),
    RecordType(
        "question",
        {
            **_QUESTION,
            "solution": _OPTIONAL_TEXT,
            "answer": _TEXT,
            "choices": Field(_choices, required=False),
            "answer_index": _of_type(int, "not a whole number", required=False),
            "source": _TEXT,
        },
        (
            RowCheck(
                lambda row: row["choices"] is None or row["answer"] in row["choices"],
                "answer",
                "not one of the choices",
            ),
            RowCheck(_index_names_answer, "answer_index", "does not point at the answer"),
        ),
    ),
    RecordType(
        "benchmark",
        {
            "id": _TEXT,
            "category": _TEXT,
            "turns": _of_type(SomeTexts, _TEXTS),
            "reference": _of_type(NotBlank | Texts, _TEXT_OR_TEXTS, required=False),
            "messages": _OF_PROMPTS["messages"],
            "source": _TEXT,
        },
        (_SAME_PROMPT,),
    ),
    RecordType(
        "model_output",
        # A model may answer nothing at all; the comparison needs that answer, too. Several turns have one answer each.
        {
            "id": _TEXT,
            "question_id": _TEXT,
            "generator": _TEXT,
            "output": _of_type(str | list[str], "neither text nor a list of texts"),
            "source": _TEXT,
        },
    ),
    RecordType(
        "sentences",
        {
            "id": _TEXT,
            "text": _TEXT,
            "sentence_spans": _of_type(list[Span], "not a list of [start, end] pairs"),
            "source": _TEXT,
        },
        (RowCheck(_spans_fit, "sentence_spans", "not in order within the text"),),
    ),
    RecordType(
        "sft",
        {"id": _TEXT, "prompt": _TEXT, "response": _TEXT, "score": _NUMBER, **_OF_PROMPTS, "source": _TEXT},
        (_SAME_PROMPT,),
    ),
    RecordType("prompt", {"id": _TEXT, "prompt": _TEXT, **_OF_PROMPTS, "source": _TEXT}, (_SAME_PROMPT,)),
)
RECORD_TYPES: dict[str, RecordType] = {kind.name: kind for kind in _TYPES}


def record_type(name: str) -> RecordType:
    """Returns the record type called `name`; an unknown name raises `DataError` with the known ones."""
    if name not in RECORD_TYPES:
        raise DataError(f"unknown record type '{name}'", remedy=f"Known types: {', '.join(RECORD_TYPES)}")
    return RECORD_TYPES[name]


def infer_record_type(rows: Sequence[Mapping[str, Any]], *, file: str | None = None) -> RecordType:
    """Returns the most specific type whose required fields are all named by at least a tenth of the rows.

    Only the presence of field names counts. In a file of mixed or damaged rows the more specific type wins,
    so the others are quarantined or refused rather than read as something lesser.

    Raises:
        DataError: no type fits; the message lists the fields found.
    """
    for kind in RECORD_TYPES.values():
        needed = set(kind.required) - {"id", "source"}
        if 10 * sum(needed <= row.keys() for row in rows) >= len(rows) > 0:
            return kind
    found = ", ".join(sorted(rows[0])) if rows else "none"
    raise DataError(
        f"no record type fits the fields found ({found})",
        file=file,
        remedy=f"Name the record type, one of: {', '.join(RECORD_TYPES)}",
    )
