"""Settings: values of rows, and the texts of pages and of other settings files."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any

import yaml
from dvc.utils.serialize import YAMLFileCorruptedError, load_yaml

from rlhf_core.errors import RewardsmithError
from rlhf_core.recipe import parse_recipe
from tasks.graph.check import check_all, check_rows
from tasks.graph.matrix import build
from tasks.params.pages import Address, page_files, read_page, read_settings
from tasks.params.studies import read_study
from tasks.params.tuning import tuning_spec
from tasks.params.yaml_files import read_mapping
from tests import small_repository
from tests.fuzz.damage import VALUES, Area, damage_file, damaged_yaml, remove

PROJECT = small_repository.PROJECT


def rows_of_params() -> list[dict[str, Any]]:
    """Returns all rows of this repository."""
    files = [file for folder in (PROJECT / "params").iterdir() for file in page_files(folder, "rows")]
    pages = [read_page(file) for file in files]
    return [read_settings(Address(f"{page.file}:{name}")) for page in pages for name in page.names]


@contextmanager
def settings(folder: Path) -> Iterator[Area]:
    """Yields a case: a row with a changed value is read, or refused in words."""
    known = rows_of_params()

    def case(rng: random.Random) -> None:
        row: Any = yaml.safe_load(yaml.safe_dump(rng.choice(known)))
        at = row
        while isinstance(at, dict) and at:
            key = rng.choice([*at])
            if rng.random() < 0.5 or not isinstance(at[key], dict):
                at[rng.choice([key, key, 5, "coress"])] = rng.choice(VALUES)
                break
            at = at[key]
        parse_recipe(row, "row")

    yield case


def _as_dvc(file: Path) -> None:
    """Asserts that DVC reads a settings file as the stages do, or not at all."""
    read = read_mapping(file)
    with suppress(YAMLFileCorruptedError, ValueError):
        dvcs = load_yaml(str(file))
        assert repr(_plain(dvcs)) == repr(_plain(read)), f"DVC reads {file} otherwise"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _reader(file: Path, root: Path) -> Callable[[], object]:
    """Returns what reads a settings file alone."""
    if file.parent.name == "studies":
        return lambda: read_study(file)
    if file.name == "tuning.yaml":
        return lambda: tuning_spec(root)
    if file.name in ("params.yaml", "reevaluation.yaml", "scale.yaml"):
        return lambda: read_mapping(file)
    return lambda: [read_page(file).entry(name) for name in read_page(file).names]


@contextmanager
def pages(folder: Path) -> Iterator[Area]:
    """Yields a case: a settings file with damaged text is read as DVC reads it, or refused by its name; the graph is
    built without its rows, or refused."""
    whole, small = folder / "whole", small_repository.create(folder / "small", demo=("bandit",), seeds=(0,))
    for name in ("params", "studies"):
        shutil.copytree(PROJECT / name, whole / name)
    shutil.copyfile(PROJECT / "params.yaml", whole / "params.yaml")
    files = {root: [root / "params.yaml", *root.glob("params/**/*.yaml"), *root.glob("studies/*.yaml")]
             for root in (whole, small)}  # fmt: skip
    kept = {file: file.read_bytes() for found in files.values() for file in found}

    def case(rng: random.Random) -> None:
        root = rng.choice([whole, small])
        file = rng.choice(files[root])
        done = damage_file(rng, file, damaged_yaml)
        try:
            try:
                _as_dvc(file)
                _reader(file, root)()
            except RewardsmithError as error:
                if file.name not in str(error):
                    raise AssertionError(f"the message does not name {file.name}") from error
            if root == small:
                build(small)
                with suppress(RewardsmithError), redirect_stderr(io.StringIO()):
                    check_all(small)
                for problem in check_rows(small, "segment", ["bandit", "dpo"], "testbed"):
                    named = ".yaml" in problem or problem.startswith("unknown row")
                    assert named, f"{problem} names no file"
        except BaseException as error:
            error.add_note(done)
            raise
        finally:
            remove(file)
            file.write_bytes(kept[file])

    yield case
