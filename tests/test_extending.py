"""docs/extending.md as it stands: a user's own reward, aspect and data set beside the project's pages, planned."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from rlhf_core.data.jsonl import Lines
from rlhf_core.data.quarantine import Screening
from rlhf_core.data.schemas import record_type
from tasks.graph.check import check_rows
from tasks.graph.matrix import build
from tests.small_repository import PROJECT, command

DOCUMENT = PROJECT / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MOST_LINES = 60


def blocks(*languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(DOCUMENT.read_text(encoding="utf-8")) if language in languages]


def files() -> dict[str, str]:
    """The files that the page shows: the first line of a block names its file."""
    named = (text.partition("\n") for text in blocks("yaml", "python"))
    return {first.removeprefix("# "): content for first, _, content in named}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A project with what the page adds to it."""
    shutil.copytree(PROJECT / "params", tmp_path / "params")
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    (tmp_path / "my_data").mkdir()
    for split in ("train", "test"):
        (tmp_path / "my_data" / f"pairs.{split}.jsonl").write_text(blocks("json")[0])
    for name, content in files().items():
        assert not (PROJECT / name).exists(), f"{name} is the project's own"
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    for text in blocks("bash"):
        if "rewardsmith" not in text:
            command("bash", "-ec", text, root=tmp_path)
    return tmp_path


def test_the_page_takes_fewer_lines_than_it_says() -> None:
    lines = [line for text in [*files().values(), *blocks("bash")] for line in text.splitlines() if line.strip()]
    assert len(lines) < MOST_LINES
    assert f"fewer than {MOST_LINES} lines" in " ".join(DOCUMENT.read_text(encoding="utf-8").split())


def test_the_example_of_a_pair_is_a_record() -> None:
    rows = [(1, json.loads(text)) for text in blocks("json")]
    assert Screening().apply(Lines("page", rows), record_type("preference"))[0] == [row for _, row in rows]


def test_the_study_is_sound_and_resolves_into_stages_of_its_own(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study)
    monkeypatch.syspath_prepend(study)
    assert check_rows(study, "my-study", ["brevity", "preferences", "polite"], "testbed") == []
    graph = build(study)[Path("pipelines/testbed/my-study")]
    policies = {item.name: item for item in graph.items() if (item.module, item.seed) == ("policy", 0)}
    assert set(policies) == {"brevity", "preferences", "polite"}
    assert "reward_model" not in policies["brevity"].arguments
    assert policies["polite"].arguments["selection"] == "results/testbed/my-study/selection/my-aspects/0/result"
    assert graph.tables == {}, "nothing is published of it"
