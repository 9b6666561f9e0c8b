"""Made-up rows of each record type, for data sets of which a rehearsal has no rows; each says that it is made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rlhf_core.data.schemas import Record

MARK = "made up for a rehearsal"
#: Number of the first row of a split that is not learned from.
MEASURED_FROM = 101
_WORDS = ("cow", "milk", "field", "river", "stone", "bread", "window", "garden")
_SPANISH = (
    ("La vaca da leche todos los días", "The cow gives milk every day"),
    ("El río es muy largo y profundo", "The river is very long and deep"),
    ("Mi hermano compra el pan por la mañana", "My brother buys the bread in the morning"),
    ("La ventana de la casa está abierta", "The window of the house is open"),
    ("Los niños juegan en el jardín grande", "The children play in the big garden"),
    ("Hoy no tenemos nada que hacer aquí", "Today we have nothing to do here"),
    ("Ella escribe una carta a su amiga", "She writes a letter to her friend"),
    ("El tren llega tarde a la estación", "The train arrives late at the station"),
)


def _question(number: int) -> str:
    return f"What is {number} plus {number}, and what does a {_WORDS[number % len(_WORDS)]} look like?"


def _right(number: int) -> str:
    return f"It is {2 * number}. This answer was {MARK}."


def _preference(number: int) -> Record:
    scores = {"score_chosen": 4.0, "score_rejected": 2.0}
    return {"prompt": _question(number), "chosen": _right(number), "rejected": f"I do not know it, {MARK}.", **scores}


def _solved(number: int) -> Record:
    solution = f"There are {number} and {number} stones.\nTogether they are {number} + {number} = {2 * number} stones."
    return {"question": f"{number} stones and {number} stones, {MARK}: how many?", "solution": solution} | {
        "answer": str(2 * number)
    }


def _choice(number: int) -> Record:
    choices = [f"{word} {number}" for word in _WORDS[:4]]
    index = number % 4
    return {
        "question": f"Which of these words is at place {index}, {MARK}?",
        "choices": choices,
        "answer": choices[index],
        "answer_index": index,
        "solution": f"The first place has the number 0.\nSo place {index} has {choices[index]}.",
        "category": "Rehearsal",
        "mc2_choices": choices,
        "mc2_labels": [int(place == index) for place in range(4)],
    }


def _gap(number: int) -> Record:
    """Returns a question of Winogrande: two choices for a gap."""
    choices = list(_WORDS[:2])
    sentence = f"The {choices[0]} is not the {choices[1]} number {number}, since _ was {MARK}."
    return {"question": sentence, "choices": choices, "answer": choices[number % 2], "answer_index": number % 2}


def _feedback(number: int) -> Record:
    word = _WORDS[number % len(_WORDS)]
    prediction = f"A {word} is blue. It has been known for {number} years."
    end = prediction.index(".") + 1
    return {
        "question": f"Since when is the {word} known?",
        "passages": [[word, f"The {word} is green.", f"It is known since {1900 + number}, {MARK}."]],
        "gold_answer": f"It is known since {1900 + number}.",
        "predictions": [prediction, *(f"Since {1900 + number + more}." for more in range(3))],
        "feedback": {
            "errors": [
                {"error type": "Wrong-Grounding", "start": 0, "end": end},
                {"error type": "Irrelevant", "start": end + 1, "end": len(prediction)},
            ],
            "missing_info": [{"passage_id": 0, "sentence_id": 2}],
            "corrected_prediction": f"The {word} is green and known since {1900 + number}.",
        },
        "preference": [0, 1, 0, 1, 0, 1],
    }


def _translation(number: int) -> Record:
    spanish, english = _SPANISH[number % len(_SPANISH)]
    counted = number // len(_SPANISH)
    ends = f", {counted + 1}" if counted else ""
    languages = {"source_lang": "es", "target_lang": "en"}
    return {**languages, "source_text": f"{spanish}{ends}.", "target_text": f"{english}{ends}."}


def _sentences(number: int) -> Record:
    first, second = f"Text {number} was {MARK}.", "It has two sentences."
    spans = [[0, len(first)], [len(first) + 1, len(first) + 1 + len(second)]]
    return {"text": f"{first} {second}", "sentence_spans": spans, "n_sentences": 2, "genre": "rehearsal"}


def _code(number: int) -> Record:
    name = f"plus_{number}"
    tests = f"assert {name}(1) == {1 + number}"
    return {
        "question": f'def {name}(x):\n    """Returns x plus {number}, {MARK}."""\n',
        "solution": f"    return x + {number}\n",
        "entry_point": name,
        "tests": [tests],
        "plus_tests": tests,
        "test_setup": "",
        "n_base": 1,
        "n_plus": 1,
    }


def _live_code(number: int) -> Record:
    """Returns a question of LiveCodeBench: a program that reads a number."""
    case = {"input": "1\n", "output": f"{1 + number}\n", "testtype": "stdin"}
    return {
        "question_id": f"plus_{number}",
        "question_content": f"Read a number and print it plus {number}, {MARK}.",
        "starter_code": "",
        "difficulty": "easy",
        "contest_date": "2024-08-01T00:00:00",
        "public_test_cases": json.dumps([case]),
        "private_test_cases": json.dumps([{**case, "input": "2\n", "output": f"{2 + number}\n"}]),
        "metadata": "{}",
    }


#: Fields of a row by the name of its record type, given its number.
MADE_UP: Mapping[str, Callable[[int], Record]] = {
    "preference": _preference,
    "prompt": lambda number: {"prompt": _question(number)},
    "sft": lambda number: {"prompt": _question(number), "response": _right(number)},
    "benchmark": lambda number: {
        "category": "math" if number % 2 else "writing",
        "turns": [_question(number), "Say it in other words."],
        "reference": [_right(number), f"As I said, {_right(number)}"],
        "reference_generator": MARK,
    },
    "solved": _solved,
    "choice": _choice,
    "gap": _gap,
    "feedback": _feedback,
    "translation": _translation,
    "sentences": _sentences,
    "code": _code,
    "live_code": _live_code,
}


def made_up(kind: str, name: str, count: int) -> list[Record]:
    """Returns made-up rows of a record type, with ids; those of other splits than `train` say something else.

    Args:
        kind: a name in `MADE_UP`.
        name: of the set and its split, `<set>-<split>`, which begins their ids.
        count: of the rows.
    """
    first = 1 if name.endswith("-train") else MEASURED_FROM
    numbers = range(first, first + count)
    marked: dict[str, Any] = {"source": MARK}
    return [{"id": f"{name}-{number - first + 1:06d}", **MADE_UP[kind](number), **marked} for number in numbers]
