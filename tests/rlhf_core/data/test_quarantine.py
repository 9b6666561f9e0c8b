from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.jsonl import Lines, read_lines
from rlhf_core.data.quarantine import Screened, screen
from rlhf_core.data.schemas import PREFERENCE, QUESTION
from rlhf_core.errors import DataError

from .conftest import pair


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def screened(path: Path, share: float = 0.5) -> Screened:
    return screen(read_lines(path), PREFERENCE, quarantine_dir=path.parent / "bad", max_bad_share=share)


def test_bad_rows_go_to_the_quarantine_file_and_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "d.train.jsonl", pair(1), "{broken", pair(2, chosen=""), pair(3), pair(4), pair(1))
    result = screened(path)
    assert [row["id"] for row in result.rows] == ["pair-1", "pair-3", "pair-4"]
    assert str(result.summary).startswith(f"{path}: 3 of 6 rows quarantined: ")
    assert result.summary.reasons == {"broken JSON": 1, "chosen: empty": 1, "id: duplicate id": 1}
    assert result.summary.quarantine_file is not None
    rows = [json.loads(line) for line in Path(result.summary.quarantine_file).read_text().splitlines()]
    assert [(row["file"], row["row"], row["field"], row["reason"]) for row in rows] == [
        (str(path), 2, "", "broken JSON"),
        (str(path), 3, "chosen", "empty"),
        (str(path), 6, "id", "duplicate id"),
    ]
    assert rows[0]["record"] == "{broken"
    assert rows[1]["record"] == pair(2, chosen="")


def test_good_and_quarantined_rows_add_up(tmp_path: Path) -> None:
    path = write(tmp_path / "d.train.jsonl", *[pair(n, chosen="" if n % 3 == 0 else "x") for n in range(30)])
    result = screened(path)
    assert len(result.rows) + result.summary.quarantined == result.summary.total == 30


def test_more_than_the_tolerated_share_is_refused_naming_the_first_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "d.train.jsonl", *[pair(n) for n in range(8)], pair(8, prompt=" "), pair(9, chosen=1))
    with pytest.raises(DataError, match=r"row 9, field 'prompt': empty.*2 of 10 rows.*row 10, field 'chosen'"):
        screened(path, share=0.1)
    assert len((tmp_path / "bad" / "d.train.jsonl.quarantine.jsonl").read_text().splitlines()) == 2
    assert screened(path, share=0.2).summary.quarantined == 2


def test_no_good_row_is_refused_whatever_the_share(tmp_path: Path) -> None:
    path = write(tmp_path / "d.train.jsonl", pair(rejected="A good answer."))
    with pytest.raises(DataError, match="row 1, field 'rejected': identical responses"):
        screened(path, share=1.0)


def test_without_a_quarantine_folder_one_bad_row_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "d.train.jsonl", *[pair(n) for n in range(50)], pair(50, source=""))
    with pytest.raises(DataError, match="row 51, field 'source': empty"):
        screen(read_lines(path), PREFERENCE, quarantine_dir=None)


def test_a_clean_run_removes_an_earlier_quarantine_file(tmp_path: Path) -> None:
    path = write(tmp_path / "d.train.jsonl", pair(1), pair(2, chosen=""))
    screened(path)
    assert (tmp_path / "bad" / "d.train.jsonl.quarantine.jsonl").exists()
    write(path, pair(1), pair(2))
    assert screened(path).summary.quarantine_file is None
    assert list((tmp_path / "bad").iterdir()) == []


def test_records_that_utf8_cannot_write_are_quarantined(tmp_path: Path) -> None:
    path = write(tmp_path / "d.train.jsonl", pair(1), json.dumps(pair(2, prompt="x\ud800")))
    assert screened(path).summary.reasons == {"prompt: holds a lone surrogate, which no encoding can write": 1}


def test_a_question_with_more_choices_than_letters_is_quarantined_with_the_remedy(tmp_path: Path) -> None:
    rows = [
        {"id": str(n), "question": "Q", "choices": [f"c{i}" for i in range(n)], "answer": "c0", "source": "s"}
        for n in (26, 27)
    ]
    lines = read_lines(write(tmp_path / "q.test.jsonl", *rows))
    reason = "choices: more than 26 choices, the letters A to Z; remove wrong ones"
    found = screen(lines, QUESTION, quarantine_dir=tmp_path / "bad", max_bad_share=0.5)
    assert [row["id"] for row in found.rows] == ["26"]
    assert found.summary.reasons == {reason: 1}
    with pytest.raises(DataError, match=r"file .*q\.test\.jsonl, row 2, field 'choices': more than 26 .*remove"):
        screen(lines, QUESTION, quarantine_dir=None)


def test_no_rows_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="no rows"):
        screen(Lines("nothing"), PREFERENCE, quarantine_dir=None)
