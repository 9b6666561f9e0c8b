"""Two runs of one recipe: the second does not touch the row of the first."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import recipe as module
from rlhf_core.errors import RewardsmithError
from tasks.running.commit import commit_of
from tests import small_repository
from tests.small_repository import command


def run(root: Path, name: str, clamp: float = 10.0) -> str:
    """The message of the state in which the flow's function ends, without a server."""
    changes = {"readout": {"segmenter": {"kind": "bandit"}, "read": "aggregate"}, "clamp": clamp}
    state = module.recipe.fn(
        name, start="segment/bandit", credit="last_token", changes=changes, sync=False, root=str(root)
    )
    return str(state.message)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = small_repository.create(tmp_path / "tree", demo=("bandit",), seeds=(0,))
    monkeypatch.setattr(module, "create_markdown_artifact", lambda **_: None)
    return found


def test_a_deployment_whose_version_is_no_commit_runs_at_the_trees_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_request", lambda *_, **__: SimpleNamespace(message="1 ran"))
    first = commit_of(root)
    monkeypatch.setattr(module.deployment, "version", "d41d8cd98f00b204e9800998ecf8427e", raising=False)
    assert run(root, "own") == "1 ran"
    assert commit_of(root / ".work/recipes/own") == first
    command("git", "commit", "-q", "--allow-empty", "-m", "later", root=root)
    monkeypatch.setattr(module.deployment, "version", first, raising=False)
    run(root, "pinned")
    assert commit_of(root / ".work/recipes/pinned") == first != commit_of(root)


def test_a_second_run_of_a_name_is_refused_while_the_first_is_at_work(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = root / ".work/recipes/own/params/segment/rows_own.yaml"
    seen: list[str] = []

    def at_work(path: Path, *_: object, **__: object) -> Any:
        if path.name == "own":
            before = row.read_text()
            with pytest.raises(
                RewardsmithError, match=rf"recipe 'own' is active \(process {os.getpid()}, .*another name"
            ):
                run(root, "own", 5.0)
            assert row.read_text() == before
            run(root, "other", 5.0)
        seen.append(path.name)
        return SimpleNamespace(message="1 ran")

    monkeypatch.setattr(module, "run_request", at_work)
    assert run(root, "own") == "1 ran"
    assert seen == ["other", "own"]
    assert run(root, "other", 5.0) == "1 ran", "the name is free again"
    assert command("git", "status", "--short", root=root).stdout == ""
