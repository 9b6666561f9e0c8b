"""Bad input, met by the stage that reads it: one clear line, exit code 2, nothing half-written, the next run works.

Faults of all kinds are those of `tests/rlhf_core/data`; the golden run `own-pairs` has a tolerated one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.encoding import Limits
from rlhf_core.errors import DataError
from rlhf_core.segmentation.segmenters import build_segmenter
from rlhf_core.supervised.recipes import Dpo, Sources
from tasks.aspect_model import _whole_pairs
from tasks.running.artifacts import write_jsonl
from tasks.running.loading import encode, load_encoder
from tasks.running.stage import USER_ERROR, run_main
from tasks.scoring.segmenting import Reading
from tests.tasks.golden_files import FILES, FILES_FOLDER
from tests.tasks.golden_runs import SETTINGS, GoldenRuns, SharedRuns


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> GoldenRuns:
    return GoldenRuns(tmp_path_factory.mktemp("bad")).write()


def refused(capsys: pytest.CaptureFixture[str], runs: GoldenRuns, out: Path, **changes: Any) -> str:
    """The one error line of the stage `prepare` on pairs of a folder; None removes a setting."""
    spec = {**SETTINGS["data/own-pairs"], "max_bad_share": 0.0, **changes}
    spec = {name: value for name, value in spec.items() if value is not None}
    with pytest.raises(SystemExit) as stopped:
        run_main(lambda _: runs.run("own-pairs", spec=spec, out=out))
    assert stopped.value.code == USER_ERROR
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return error


def test_bad_rows_are_refused_and_kept_and_the_next_run_works(
    runs: GoldenRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, runs, tmp_path / "out")
    kept = tmp_path / "out" / "quarantine" / "talks.train.jsonl.quarantine.jsonl"
    assert re.search(rf"talks\.train\.jsonl, row 8, field 'chosen': empty.*in {kept}; correct them", error)
    assert [json.loads(line)["row"] for line in kept.read_text().splitlines()] == [8]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["quarantine"]
    runs.run("own-pairs", out=tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"result", "record"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preferense": ["talks"]}, r"yaml: unknown setting 'preferense'; did you mean 'preference'\?"),
        ({"preference": ["walks"]}, r"unknown data set 'walks'; did you mean 'talks'\?"),
        ({"source": "folder"}, r"yaml: source is 'folder'; known: testbed, directory, huggingface"),
        ({"template": "plane"}, r"unknown chat template 'plane'"),
        ({"limits": {"prompt": 128, "total": 64}}, r"prompt limit 128 and total limit 64 contradict each other"),
        ({"limits": {"promt": 128, "total": 64}}, r"limits: unknown setting 'promt'; did you mean 'prompt'\?"),
        ({"validation_share": 1.5}, r"yaml: validation_share is 1.5; it must be between 0 and 1"),
        (
            {"validation_share": 0.99, "max_bad_share": 0.5},
            r"19 rows leave none for training besides 19 for validation",
        ),
        ({"source": "huggingface"}, r"'sets' belong to huggingface"),
        ({"limits": None}, r"yaml: 'limits' is missing"),
    ],
)
def test_a_bad_data_spec_is_refused(
    runs: GoldenRuns, tmp_path: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(message, refused(capsys, runs, tmp_path, **changes))
    assert {path.name for path in tmp_path.iterdir()} <= {"quarantine"}


def test_an_id_of_two_sets_is_refused(runs: GoldenRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "test"):
        rows = FILES[f"talks.{split}"][1:3]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (runs.root / FILES_FOLDER / f"others.{split}.jsonl").write_text(text)
    error = refused(capsys, runs, tmp_path, preference=["talks", "others"], max_bad_share=0.1)
    assert "file others.train, field 'id': 'train-1' is an id of 'talks', too. Give the rows of each set" in error


@pytest.mark.parametrize("beyond", ["truncate", "error"])
def test_a_prompt_beyond_the_cap_is_cut_and_counted_or_refused_by_file_and_row(golden: SharedRuns, beyond: str) -> None:
    data = golden.result("dialogue")
    encoder = load_encoder(data, golden.result("dialogue-tokenizer"))
    encoder.limits = Limits(60, 128, on_long_prompt=beyond)
    rows = [{"prompt": prompt, "response": "Here."} for prompt in ("Where?", "Where, oh where, is it? " * 20)]
    if beyond == "error":
        with pytest.raises(DataError, match=r"sft.jsonl, row 2, field 'prompt': the prompt has .*the cap is 60. Raise"):
            encode(encoder, rows, "response", data / "sft.jsonl")
    else:
        encode(encoder, rows, "response", data / "sft.jsonl")
        assert encoder.counts.prompts_cut == 1


def test_every_reader_of_pairs_leaves_out_those_that_the_limits_destroy(golden: SharedRuns, tmp_path: Path) -> None:
    encoder = load_encoder(golden.result("dialogue"), golden.result("dialogue-tokenizer"))
    long = "Here it is, " * 40
    rows: Any = [
        {"prompt": "Where?", "chosen": f"{long}yes.", "rejected": f"{long}no."},
        {"prompt": "Where?", "chosen": "Here.", "rejected": "There."},
    ]
    encoder.limits = Limits(60, 128)
    encoded = [encoder.sequence(row, row[side]) for side in ("chosen", "rejected") for row in rows]
    entropies = [[float(place)] * len(one.response) for place, one in enumerate(encoded)]
    write_jsonl(tmp_path / "pairs.jsonl", rows)
    reading = Reading(encoder, build_segmenter({"kind": "entropy", "cutoff": 1.5}))
    read = reading.pairs(rows, entropies)
    assert (read.rows, read.count, read.dropped) == (rows[1:], 1, 1)
    learned = Dpo(beta=0.1).examples(Sources(preference=rows), encoder)
    found, dropped = _whole_pairs(encoder, tmp_path / "pairs.jsonl")
    aspect = [[one.sequence for one in side] for side in found]
    sides = [[encoder.sequence(rows[1], rows[1][side])] for side in ("chosen", "rejected")]
    assert learned.dropped == dropped == 1
    assert [one.sequence for one in read.sequences] == [*sides[0], *sides[1]]
    assert read.spans == reading.cut([*sides[0], *sides[1]], [entropies[1], entropies[3]])[1]
    assert len(read.spans[0]) < len(read.spans[1])
    with pytest.raises(DataError, match=r"file pairs\.jsonl.*none of 1 pairs"):
        reading.pairs(rows[:1], [entropies[0], entropies[2]], Path("pairs.jsonl"))
    with pytest.raises(DataError, match=r"file pairs\.jsonl.*none of 1 pairs"):
        Dpo(beta=0.1).examples(Sources(preference=rows[:1], file="pairs.jsonl"), encoder)
    assert sides == aspect == [learned.chosen, learned.rejected]
