"""pandera schemas of every record type, one `RecordType` each.

A schema names required fields, what each field must hold, and checks over whole rows. Columns that a
schema does not name are kept untouched. Every check treats an absent field and JSON `null` as missing,
and a NaN as a value that is not finite (`ignore_na=False` throughout: pandas would let NaN pass).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import pandas as pd
import pandera.pandas as pa

from rlhf_core.data.dialogue import asks_prompt, check_messages
from rlhf_core.errors import DataError

Record = dict[str, Any]
#: Characters of a text; a longer one takes minutes to tokenise and no model reads it.
LONGEST_TEXT = 1_000_000
#: Choices of a question; answers name them by the letters A to Z.
MOST_CHOICES = 26
#: Characters that are neither white space nor printed in ASCII.
_PERHAPS_MARK = re.compile(r"[^ -~\s]")
_Test = Callable[[Any], bool]


def _check(test: _Test, reason: str) -> pa.Check:
    """Returns an element-wise check that sees missing values as None and reports `reason`."""
    return pa.Check(test, element_wise=True, ignore_na=False, error=reason)


def _when_present(test: _Test) -> _Test:
    return lambda value: value is None or test(value)


class Unwritable:
    """Placeholder in a frame for a value with a lone surrogate, which pandas cannot hold."""


def frame_of(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> pd.DataFrame:
    """Returns the named fields as object columns: None for an absent field, `Unwritable` for a lone surrogate."""
    columns = {name: [_writable(record.get(name)) for record in records] for name in names}
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


def _writable(value: Any) -> Any:
    try:
        if isinstance(value, str):
            value.encode("utf-8")
        elif isinstance(value, list | dict):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return Unwritable()
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def unwritable_field(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the first field that no file could hold, of those that a schema does not name, too; with the reason."""
    try:
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8")
        return None
    except (ValueError, RecursionError):
        pass
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


def _is_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) and item.strip() for item in value)


def _is_visible(text: str) -> bool:
    """Returns whether a text has a character that is neither white space nor an invisible mark."""
    return any(not char.isspace() and not _is_mark(char) for char in text)


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in ("Cf", "Cc")


def _seen(text: str) -> str:
    """Returns a text without invisible marks, such as a zero-width space, and without white space at its ends."""
    return _PERHAPS_MARK.sub(lambda found: "" if _is_mark(found[0]) else found[0], text).strip()


_PRESENT = _check(lambda value: value is not None, "missing")
_TEXT = _check(lambda value: value is None or isinstance(value, str | Unwritable), "not text")
_SHORT_ENOUGH = _check(
    lambda value: not isinstance(value, str) or len(value) <= LONGEST_TEXT, f"longer than {LONGEST_TEXT:,} characters"
)
_NOT_EMPTY = _check(lambda value: not isinstance(value, str) or _is_visible(value), "empty")
_WRITABLE = _check(
    lambda value: not isinstance(value, Unwritable), "holds a lone surrogate, which no encoding can write"
)


def _text() -> pa.Column:
    """Returns the required text with at least one character that is seen."""
    return pa.Column(object, [_PRESENT, _TEXT, _NOT_EMPTY, _SHORT_ENOUGH, _WRITABLE], nullable=True)


def _optional_text() -> pa.Column:
    """Returns the text that may be missing or empty (a solution without explanation)."""
    return pa.Column(object, [_TEXT, _SHORT_ENOUGH, _WRITABLE], nullable=True, required=False)


def _number() -> pa.Column:
    """Returns a label or score: finite when present."""
    number = _check(_when_present(_is_number), "not a number")
    finite = _check(lambda value: not _is_number(value) or _is_finite(value), "not finite")
    return pa.Column(object, [number, finite], nullable=True, required=False)


def _column(test: _Test, reason: str, *, required: bool = True) -> pa.Column:
    checks = [_PRESENT, _WRITABLE] if required else [_WRITABLE]
    form = _check(lambda value: value is None or isinstance(value, Unwritable) or test(value), reason)
    return pa.Column(object, [*checks, form], nullable=True, required=required)


def _choices() -> pa.Column:
    """Returns the choices of a question, which may be missing: at least two, at most one for each letter."""
    several = _check(
        lambda value: value is None or isinstance(value, Unwritable) or (_is_texts(value) and len(value) >= 2),
        "not two or more texts",
    )
    lettered = _check(
        lambda value: not isinstance(value, list) or len(value) <= MOST_CHOICES,
        f"more than {MOST_CHOICES} choices, the letters A to Z; remove wrong ones",
    )
    return pa.Column(object, [_WRITABLE, several, lettered], nullable=True, required=False)


def _rows(test: Callable[[Mapping[str, Any]], bool], field: str, reason: str) -> pa.Check:
    """Returns a check over whole rows; `field` is the field the reader should look at."""

    def passes(frame: pd.DataFrame) -> pd.Series[bool]:
        names = [str(name) for name in frame.columns]
        rows = (dict(zip(names, values, strict=True)) for values in frame.itertuples(index=False, name=None))
        return cast("pd.Series[bool]", pd.Series([test(row) for row in rows], index=frame.index, dtype=bool))

    return pa.Check(passes, ignore_na=False, error=f"{field}: {reason}", name="row")


def _unique_by(keys: Sequence[str]) -> pa.Check:
    """Returns a check that passes the first row of each key and fails later ones; rows without a key pass."""

    def passes(frame: pd.DataFrame) -> pd.Series[bool]:
        columns = [frame[key] if key in frame else pd.Series(None, index=frame.index) for key in keys]
        seen = pd.Series([repr(values) for values in zip(*columns, strict=True)], index=frame.index)
        return ~(seen.duplicated(keep="first") & columns[0].notna())

    return pa.Check(passes, ignore_na=False, error=f"{keys[0]}: duplicate {' + '.join(keys)}", name="row")


def _choices_hold_answer(row: Mapping[str, Any]) -> bool:
    choices, answer = row.get("choices"), row.get("answer")
    return not _is_texts(choices) or not isinstance(answer, str) or answer in choices


def _index_names_answer(row: Mapping[str, Any]) -> bool:
    choices, index = row.get("choices"), row.get("answer_index")
    if not _is_texts(choices) or not isinstance(index, int):
        return True
    return 0 <= index < len(choices) and choices[index] == row.get("answer")


def _responses_differ(row: Mapping[str, Any]) -> bool:
    chosen, rejected = row.get("chosen"), row.get("rejected")
    return not isinstance(chosen, str) or not isinstance(rejected, str) or _seen(chosen) != _seen(rejected)


def _spans_fit(row: Mapping[str, Any]) -> bool:
    text, spans = row.get("text"), row.get("sentence_spans")
    if not isinstance(text, str) or not _are_spans(spans):
        return True
    ends = [0, *(position for span in spans for position in span)]
    return ends == sorted(ends) and ends[-1] <= len(text)


def _are_spans(value: Any) -> TypeGuard[list[list[int]]]:
    return isinstance(value, list) and all(
        isinstance(span, list) and len(span) == 2 and all(type(position) is int for position in span) for span in value
    )


def _is_feedback(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict) or not isinstance(value.get("missing_info"), list):
        return False
    errors = value.get("errors")
    return isinstance(errors, list) and all(
        isinstance(error, dict)
        and isinstance(error.get("error type"), str)
        and type(error.get("start")) is int
        and type(error.get("end")) is int
        for error in errors
    )


def _errors_fit(row: Mapping[str, Any]) -> bool:
    predictions, feedback = row.get("predictions"), row.get("feedback")
    if not _is_texts(predictions) or not predictions or not _is_feedback(feedback):
        return True
    return all(0 <= error["start"] < error["end"] <= len(predictions[0]) for error in feedback["errors"])


@dataclass(frozen=True)
class RecordType:
    """One kind of record: its name, its pandera schema, and the fields that identify a row."""

    name: str
    schema: pa.DataFrameSchema
    unique_by: tuple[str, ...] = ("id",)

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(name for name, column in self.schema.columns.items() if column.required)


def _record_type(
    name: str,
    columns: Mapping[str, pa.Column],
    checks: Sequence[pa.Check] = (),
    unique_by: tuple[str, ...] = ("id",),
    *,
    source: bool = True,
) -> RecordType:
    all_columns = {"id": _text(), **columns, **({"source": _text()} if source else {})}
    schema = pa.DataFrameSchema(all_columns, checks=[*checks, _unique_by(unique_by)], strict=False, name=name)
    return RecordType(name, schema, unique_by)


def _are_messages(value: Any) -> bool:
    """Returns whether a value is a dialogue that can be answered."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return False
    try:
        check_messages(value)
    except DataError:
        return False
    return sum(len(one["content"]) for one in value) <= LONGEST_TEXT


def _are_earlier(value: Any) -> bool:
    """Returns whether a value is a list of messages that a prompt can follow."""
    return isinstance(value, list) and _are_messages([*value, {"role": "user", "content": ""}])


def _asks_its_prompt(row: Mapping[str, Any]) -> bool:
    """Returns whether a row's messages, where it has any, ask what the judge reads: its prompt, or its first turn."""
    messages: Any = row.get("messages")
    turns = row.get("turns")
    prompt = turns[0] if _is_texts(turns) and turns else row.get("prompt")
    return not _are_messages(messages) or not isinstance(prompt, str) or asks_prompt(messages, prompt)


_MESSAGES = _column(
    _are_messages,
    f"not a list of mappings with role (system, user, assistant) and content, the last one of the user, of at most "
    f"{LONGEST_TEXT:,} characters",
    required=False,
)
_HISTORY = _column(
    _are_earlier, "not a list of mappings with role (system, user, assistant) and content", required=False
)
#: Fields that every record of a prompt may have.
_OF_PROMPTS = {"messages": _MESSAGES, "history": _HISTORY}
_SAME_PROMPT = _rows(
    _asks_its_prompt, "messages", "the last message is not the prompt, and the prompt is not the dialogue as text"
)
_TEXTS = "not a list of non-empty texts"

PREFERENCE = _record_type(
    "preference",
    {
        "prompt": _text(),
        "chosen": _text(),
        "rejected": _text(),
        "label": _number(),
        "score_chosen": _number(),
        "score_rejected": _number(),
        "preference": _number(),
        "margin": _number(),
        **_OF_PROMPTS,
    },
    [_rows(_responses_differ, "rejected", "identical responses"), _SAME_PROMPT],
)
PROMPT = _record_type("prompt", {"prompt": _text(), **_OF_PROMPTS}, [_SAME_PROMPT])
SFT = _record_type("sft", {"prompt": _text(), "response": _text(), "score": _number(), **_OF_PROMPTS}, [_SAME_PROMPT])
QUESTION = _record_type(
    "question",
    {
        "question": _text(),
        "solution": _optional_text(),
        "answer": _text(),
        "choices": _choices(),
        "answer_index": _column(lambda v: type(v) is int, "not a whole number", required=False),
    },
    [
        _rows(_choices_hold_answer, "answer", "not one of the choices"),
        _rows(_index_names_answer, "answer_index", "does not point at the answer"),
    ],
)
LONG_FORM = _record_type(
    "long_form",
    {
        "question": _text(),
        "passages": _column(
            # An empty list is a question for which retrieval found nothing (QA-Feedback has some).
            lambda v: isinstance(v, list) and all(_is_texts(p) and bool(p) for p in v),
            "not a list of passages, each [title, sentence, ...]",
        ),
        "gold_answer": _optional_text(),
        "predictions": _column(_is_texts, _TEXTS, required=False),
    },
)
FEEDBACK = _record_type(
    "feedback",
    {
        **{name: column for name, column in LONG_FORM.schema.columns.items() if name not in ("id", "source")},
        "predictions": _column(lambda v: _is_texts(v) and bool(v), _TEXTS),
        "feedback": _column(_is_feedback, "not a mapping of errors (with error type, start and end) and missing_info"),
    },
    [_rows(_errors_fit, "feedback", "an error's span lies outside the first prediction")],
)
TRANSLATION = _record_type(
    "translation",
    {"source_lang": _text(), "target_lang": _text(), "source_text": _text(), "target_text": _text()},
)
BENCHMARK = _record_type(
    "benchmark",
    {
        "category": _text(),
        "turns": _column(lambda v: _is_texts(v) and bool(v), _TEXTS),
        "reference": _column(
            lambda v: _is_texts(v) or (isinstance(v, str) and bool(v.strip())),
            "neither a text nor a list of non-empty texts",
            required=False,
        ),
        "messages": _MESSAGES,
    },
    [_SAME_PROMPT],
)
CODE = _record_type(
    "code",
    {
        "question": _text(),
        "solution": _text(),
        "tests": _column(
            lambda v: (isinstance(v, str) and bool(v.strip())) or (_is_texts(v) and bool(v)),
            "neither a text nor a list of non-empty texts",
        ),
        "entry_point": _optional_text(),
    },
)
JUDGEMENT = _record_type(
    "judgement",
    {
        "benchmark": _text(),
        "raw": _optional_text(),
        "valid": _column(lambda v: isinstance(v, bool), "neither true nor false"),
        "preference": _number(),
        "score": _number(),
    },
    unique_by=("id", "benchmark", "game", "turn", "baseline", "template"),
    source=False,
)
MODEL_OUTPUT = _record_type(
    "model_output",
    # A model may answer nothing at all; the comparison needs that answer, too. Several turns have one answer each.
    {
        "question_id": _text(),
        "generator": _text(),
        "output": _column(
            lambda v: _is_text(v) or (isinstance(v, list) and all(map(_is_text, v))), "neither text nor a list of texts"
        ),
    },
)
SENTENCES = _record_type(
    "sentences",
    {"text": _text(), "sentence_spans": _column(_are_spans, "not a list of [start, end] pairs")},
    [_rows(_spans_fit, "sentence_spans", "not in order within the text")],
)

# The order settles ties in `infer_record_type`: the most specific type first.
RECORD_TYPES: dict[str, RecordType] = {
    kind.name: kind
    for kind in (
        PREFERENCE,
        TRANSLATION,
        FEEDBACK,
        LONG_FORM,
        CODE,
        QUESTION,
        BENCHMARK,
        JUDGEMENT,
        MODEL_OUTPUT,
        SENTENCES,
        SFT,
        PROMPT,
    )
}


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
