"""Refusals of stages: of inputs that do not fit each other, and of numbers that diverge; nothing is left behind."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rlhf_core.errors import DataError, NumericsError, RecipeError, RewardsmithError
from tests.tasks.golden_runs import RESULTS, RUNS, SCALE, SETTINGS, SHARED, Given, SharedRuns, changed

Row = dict[str, Any]


def row(name: str, **values: Any) -> Row:
    """Returns a golden row with other values."""
    return {**SETTINGS[f"row/{name}"], **values}


def result(name: str) -> str:
    """Returns the result of a golden run as command lines state it."""
    return f"{RESULTS}/{SCALE}/{RUNS[name].place}/result"


PAR = {"kind": "par", "references": 2}
#: (golden run, changed arguments, message); a mapping is written as a settings file.
MISFITS: list[tuple[str, dict[str, Given], str]] = [
    ("bandit", {"normaliser": None}, "give --normaliser"),
    (
        "bandit",
        {"reward_model": result("model-odin")},
        "the reward model 'bandit' has quality, length",
    ),
    (
        "qa-alarm",
        {"row": row("qa-alarm", components=[SHARED["holistic"], {"aspect": "factuality", "credit": "last_token"}])},
        "takes Sequence",
    ),
    (
        "qa-alarm",
        {"row": row("qa-alarm", components=[SHARED["holistic"], {"aspect": "completeness", "shaping": PAR}])},
        "reference rewards",
    ),
    ("model-warm", {"reward_model": (result("model-warm-1"), result("model-odin"))}, "'warm-2' has heads"),
    (
        "references-bandit",
        {"reward_model": result("model-sentence"), "sentences": result("segmenter")},
        "reads end tokens.*end_token: false",
    ),
    ("dialogue-tokenizer", {"spec": {"vocabulary": 20, "full_byte_alphabet": False}}, "vocab_size 20 is too small"),
    ("entropies", {"sft": "nowhere/result"}, "nowhere/result: input does not exist. Run the stage that makes it first"),
]


@pytest.mark.parametrize(
    ("name", "changes", "message"), MISFITS, ids=[f"{case[0]}-{i}" for i, case in enumerate(MISFITS)]
)
def test_inputs_that_do_not_fit_are_refused(
    golden: SharedRuns, name: str, changes: dict[str, Given], message: str, tmp_path: Path
) -> None:
    read = [run for run in RUNS if any(result(run) in _texts(value) for value in changes.values())]
    golden.made(*RUNS[name].needs, *read)
    with pytest.raises(RewardsmithError, match=message):
        golden.run(name, **changes, out=tmp_path / "out")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def _texts(value: Given) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def edited(golden: SharedRuns, name: str, folder: Path, file: str, change: Callable[[Any], Any]) -> Path:
    """Returns a copy of a result with one file changed: rows, an object or tensors."""
    copy = Path(shutil.copytree(golden.made(name).result(name), folder / "edited"))
    path = copy / file
    if path.suffix == ".safetensors":
        save_file(change(load_file(path)), path)
    elif path.suffix == ".jsonl":
        rows = change([json.loads(line) for line in path.read_text().splitlines()])
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return copy


def all_right(rows: list[Row]) -> list[Row]:
    for row in rows:
        row["labels"]["relevance"] = [[start, end, True] for start, end, _ in row["labels"]["relevance"]]
    return rows


def not_finite(tensors: dict[str, Any]) -> dict[str, Any]:
    tensors["values.reward"][:] = math.nan
    return tensors


def constant(selection: Row) -> Row:
    return selection | {
        "aspects": selection["aspects"] | {"completeness": selection["aspects"]["completeness"] | {"std": 0.0}}
    }


#: (golden run, its argument, the run that gives it, file, change, changed row, message)
EDITED: list[tuple[str, str, str, str, Callable[[Any], Any], Row | None, str]] = [
    ("par", "references", "references-bandit", "references.safetensors", not_finite, None,
     "a reference reward of prompt '.*' is not finite"),
    ("qa-alarm-selected", "selection", "selection-qa", "selection.json", lambda found: found | {"chosen": []}, None,
     "the selection chose no aspect"),
    ("qa-alarm", "selection", "selection-qa", "selection.json", constant,
     row("qa-alarm", components=[SHARED["holistic"], {"aspect": "completeness"}]), "aspect 'completeness' is constant"),
    ("aspect-relevance", "data", "longform", "labelled.train.jsonl", all_right, None,
     "every slice is right in aspect 'relevance'"),
    ("generative", "teacher", "teacher", "rewrites.jsonl",
     lambda rows: [one | {"accepted": False} for one in rows], None, "rewrites of 0 questions were accepted"),
    ("math-rlmec", "token_rewards", "generative", "grm_rewrites.jsonl",
     lambda rows: [one | {"rewrite": one["prediction"]} for one in rows], None, "nothing to imitate"),
    ("solution_pairs", "samples", "samples", "samples.jsonl", lambda rows: [one for one in rows if one["correct"]],
     None, "0 questions have both a correct and a wrong solution"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "argument", "of", "file", "change", "own", "message"),
    EDITED,
    ids=[f"{case[0]}-{i}" for i, case in enumerate(EDITED)],
)
def test_results_that_do_not_fit_are_refused(
    golden: SharedRuns,
    name: str,
    argument: str,
    of: str,
    file: str,
    change: Any,
    own: Row | None,
    message: str,
    tmp_path: Path,
) -> None:
    golden.made(*RUNS[name].needs)
    given: dict[str, Given] = {argument: edited(golden, of, tmp_path, file, change)} | (
        {} if own is None else {"row": own}
    )
    with pytest.raises(RewardsmithError, match=message):
        golden.run(name, **given, out=tmp_path / "out")
    assert not (tmp_path / "out" / "result").exists()


@pytest.mark.parametrize(
    ("name", "argument", "path", "message"),
    [
        ("sft", "spec", "training.learning_rate", r"file .*sft.jsonl: step \d: .*nan.*lower"),
        ("model-bandit", "scale", "learning_rate", r"preference.train.jsonl: step \d: .*nan"),
        ("dpo", "scale", "optimiser.learning_rate", r"preference.train.jsonl: step \d: .*nan"),
        ("bandit", "scale", "optimiser.critic_lr", "lower the learning rate"),
    ],
)
def test_numbers_that_diverge_leave_an_earlier_result_in_place(
    golden: SharedRuns, name: str, argument: str, path: str, message: str, tmp_path: Path
) -> None:
    golden.made(*RUNS[name].needs)
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "metrics.json").write_text("{}")
    with pytest.raises(NumericsError, match=message):
        golden.run(name, **{argument: changed(str(RUNS[name].settings[argument]), path, 1e30)}, out=tmp_path)
    assert {p.name for p in tmp_path.iterdir()} - {"diverged.json"} == {"result"}
    assert [p.name for p in (tmp_path / "result").iterdir()] == ["metrics.json"]


OWN_REWARDS = """
import torch

def shape(batch):
    return torch.zeros(len(batch), 999)

def fails(batch):
    return batch.texts[0].undefined

def nan(batch):
    return torch.full((len(batch),), float("nan"))
"""


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("shape", RecipeError, r"^reward function own_wrong:shape returned shape \(16, 999\); .* wants \(16,\)"),
        ("fails", RecipeError, r"^reward function own_wrong:fails failed: AttributeError.*line 8 of .*own_wrong.py"),
        ("nan", NumericsError, r"^reward function own_wrong:nan: the reward of response 0 of the batch is not finite"),
    ],
)
def test_a_wrong_reward_function_is_an_error_of_the_function(
    golden: SharedRuns,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: type[RewardsmithError],
    message: str,
) -> None:
    """No file of data is blamed, and only a value that is not finite is a divergence."""
    (tmp_path / "own_wrong.py").write_text(OWN_REWARDS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    golden.made("sft")
    with pytest.raises(error, match=message):
        golden.run("function", row=row("function", function=f"own_wrong:{name}"), out=tmp_path / "out")
    assert (tmp_path / "out" / "diverged.json").exists() == (error is NumericsError)


def test_damaged_results_are_named_with_their_row(tmp_path: Path) -> None:
    from tasks.running.artifacts import read_json, read_jsonl, read_tensors, write_json

    for name, content, read, message in (
        ("history.jsonl", b'{"a": 1}\n{"a": 2}\n{"a"', read_jsonl, r"history\.jsonl, row 3: not valid JSON"),
        ("metrics.json", b"\xff\xfe", read_json, r"metrics\.json: not valid JSON"),
        ("entropies.safetensors", b"half", read_tensors, r"entropies\.safetensors: not valid safetensors"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{message} .*Re-run its stage"):
            read(tmp_path / name)  # type: ignore[operator]
    with pytest.raises(NumericsError, match=r"metrics\.json: alpaca_wr, rows/1/kl not finite"):
        write_json(tmp_path / "metrics.json", {"alpaca_wr": math.nan, "rows": [{"kl": 1.0}, {"kl": -math.inf}]})
