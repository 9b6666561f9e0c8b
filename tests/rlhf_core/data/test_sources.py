from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.dialogue import prompt_messages
from rlhf_core.data.quarantine import Screening
from rlhf_core.data.selection import HubSet
from rlhf_core.data.sources import DirectorySource, HuggingFaceSource, Source
from rlhf_core.errors import DataError

from .conftest import pair, write_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "hh_helpful.train.jsonl.gz", [pair(n) for n in range(4)])
    write_rows(tmp_path / "hh_helpful.test.jsonl", [pair(1)])
    write_rows(tmp_path / "hh_harmless.train.jsonl", [pair(1)])
    (tmp_path / "README.md").write_text("not data")
    return tmp_path


def test_a_folder_names_its_sets_and_splits(folder: Path) -> None:
    source: Source = DirectorySource(folder)
    assert source.available() == {"hh_helpful": ["test", "train"], "hh_harmless": ["train"]}
    assert source.load("hh_helpful", "train") == [pair(n) for n in range(4)]
    assert str(source.summaries[0]).endswith("0 of 4 rows quarantined")


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("hh_helpfull", "train", "unknown data set 'hh_helpfull'; did you mean 'hh_helpful'"),
        ("zzz", "train", "unknown data set 'zzz'; known: hh_harmless, hh_helpful"),
        ("hh_helpful", "tests", r"no split 'tests'; did you mean 'test'\?"),
    ],
)
def test_an_unknown_name_gets_suggestions(folder: Path, name: str, split: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        DirectorySource(folder).load(name, split)


def test_a_folder_that_does_not_exist_or_is_ambiguous_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        DirectorySource(folder / "none").load("hh_helpful", "train")
    write_rows(folder / "hh_helpful.test.jsonl.gz", [pair(1)])
    with pytest.raises(DataError, match="both plain and compressed"):
        DirectorySource(folder).load("hh_helpful", "test")


def hub_rows(tmp_path: Path, rows: list[dict[str, Any]]) -> dict[str, str]:
    return {"train": str(write_rows(tmp_path / "theirs.json", rows))}


def their_row(number: int) -> dict[str, Any]:
    opening = [{"role": "user", "content": f"Q{number}"}]
    if number % 2:
        opening += [{"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "More."}]
    return {
        "chosen": [*opening, {"role": "assistant", "content": "good"}],
        "rejected": [*opening, {"role": "assistant", "content": "bad"}],
        "info": {"score": float(number)},
    }


MAPPING = {
    "prompt": "chosen.:-1",
    "chosen": "chosen.-1.content",
    "rejected": "rejected.-1.content",
    "score_chosen": "info.score",
}


def hub_source(tmp_path: Path, mapping: Mapping[str, str], rows: list[dict[str, Any]]) -> HuggingFaceSource:
    hub_set = HubSet("json", mapping, data_files=hub_rows(tmp_path, rows), splits={"train": "train"})
    return HuggingFaceSource({"theirs": hub_set}, Screening(tmp_path / "bad", max_bad_share=0.5))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_columns_are_mapped_by_dotted_paths(tmp_path: Path) -> None:
    source = hub_source(tmp_path, MAPPING, [their_row(n) for n in range(2)])
    first, second = source.load("theirs", "train")
    assert (first["prompt"], first["chosen"], first["rejected"]) == ("Q0", "good", "bad")
    assert (first["id"], first["source"], second["score_chosen"]) == ("theirs-train-000001", "json", 1.0)
    assert second["prompt"] == "Human: Q1\n\nAssistant: Yes?\n\nHuman: More.\n\nAssistant:"
    assert prompt_messages(second) == their_row(1)["chosen"][:-1]


def test_columns_that_the_mapping_leaves_out_are_of_all_splits(tmp_path: Path) -> None:
    source = hub_source(tmp_path, MAPPING, [their_row(0) | {"annotator": "x"}])
    source.unmapped["theirs"] = ["of another split"]
    source.load("theirs", "train")
    assert source.unmapped["theirs"][0] == "of another split"
    assert "annotator" in source.unmapped["theirs"]


def test_a_text_is_followed_as_a_dialogue(tmp_path: Path) -> None:
    """HH-Golden's columns are whole dialogues as text."""
    opening = "\n\nHuman: Q\n\nAssistant: A\n\nHuman: More.\n\nAssistant:"
    row = {"chosen": f"{opening} Good.\n", "rejected": f"{opening} Bad."}
    found = hub_source(tmp_path, {k: v for k, v in MAPPING.items() if "score" not in k}, [row]).load("theirs", "train")
    assert (found[0]["chosen"], found[0]["rejected"]) == ("Good.", "Bad.")
    assert [m["content"] for m in prompt_messages(found[0])] == ["Q", "A", "More."]


def test_a_path_that_leads_nowhere_is_a_missing_field_of_that_row(tmp_path: Path) -> None:
    rows = [their_row(0), their_row(1) | {"rejected": []}]
    source = hub_source(tmp_path, MAPPING, rows)
    assert len(source.load("theirs", "train")) == 1
    assert source.summaries[0].reasons == {"rejected: missing": 1}


def test_a_column_that_does_not_exist_is_refused_with_the_nearest(tmp_path: Path) -> None:
    source = hub_source(tmp_path, MAPPING | {"chosen": "choosen.1.content"}, [their_row(0)])
    with pytest.raises(DataError, match=r"column 'choosen', mapped to 'chosen', does not exist; did you mean 'chosen'"):
        source.load("theirs", "train")


def test_a_data_set_saved_to_disk_is_read(tmp_path: Path) -> None:
    import datasets

    table = datasets.Dataset.from_list([pair(n) for n in range(3)])
    datasets.DatasetDict({"train_prefs": table}).save_to_disk(str(tmp_path / "saved"))
    mapping = {name: name for name in pair(1)}
    hub_set = HubSet(str(tmp_path / "saved"), mapping, "preference", splits={"train": "train_prefs"})
    source: Source = HuggingFaceSource({"saved": hub_set})
    assert source.load("saved", "train") == [pair(n) for n in range(3)]
    with pytest.raises(DataError, match="cannot be loaded"):
        HuggingFaceSource({"saved": HubSet(hub_set.path, mapping)}).load("saved", "test")


def test_offline_hub_data_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    source = HuggingFaceSource({"far": HubSet("nobody/nothing-here", {"prompt": "prompt"})})
    with pytest.raises(DataError, match=r"nobody/nothing-here.*save_to_disk"):
        source.load("far", "train")
