"""Data that stages read, looked at before anything runs: rows of a folder, and whether the hub answers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rlhf_core.errors import DataError
from tasks.graph.typed_settings import TYPES
from tasks.params.data import RealSpec
from tasks.params.pages import read_settings

#: Seconds to wait for the hub.
PATIENCE = 5.0
ENDPOINT = "https://huggingface.co"


_SPEC = re.compile(r"-m tasks\.prepare .*?--spec (\S+)")


def spec_addresses(root: Path, commands: Iterable[str]) -> list[str]:
    """Returns the addresses of the data specs that stages of `prepare` among some commands read."""
    return [str(root / match[1]) for command in commands if (match := _SPEC.search(command))]


def check_local_rows(specs: Iterable[str]) -> None:
    """Refuses benchmarks of a folder that the stage `prepare` would refuse: files, fields and reference answers.

    Raises:
        DataError: names file, row and field.
    """
    for address in specs:
        data = TYPES["prepare", "spec"](read_settings(address), address)
        if not isinstance(data, RealSpec):
            continue
        from tasks.data_specs.benchmarks import code_benchmarks, dialogue_benchmarks, harness_rows  # they import pandas
        from tasks.data_specs.data_sets import open_directory

        if data.source == "directory" and (data.benchmarks or data.code):
            with TemporaryDirectory() as quarantine:
                source = open_directory(data.directory, Path(quarantine), data.max_bad_share)
                dialogue_benchmarks(data, source)
                code_benchmarks(data, source)
        local = {column: choice for column, choice in data.tasks.items() if choice.rows is not None}
        if local:
            harness_rows(replace(data, tasks=local))


def unreachable(specs: Iterable[str]) -> list[str]:
    """Returns what is needed of the hub and where to put it, one line each; nothing if it answers or is not needed.

    Args:
        specs: addresses of data specs.
    """
    needed = list(dict.fromkeys(line for spec in specs for line in _needs(spec)))
    if not needed or (problem := _problem()) is None:
        return []
    return [
        f"the hub does not answer ({problem}), and these stages read from it:",
        *(f"  {line}" for line in needed),
        "Go online (HF_HUB_OFFLINE=0), or on another machine save each data set with save_to_disk and name the folder "
        "as its 'path'; rows of a task go into <folder>/<name>.<split>.jsonl, with rows: <name> and REWARDSMITH_DATA",
    ]


def _needs(spec: str) -> Iterator[str]:
    """Yields the data sets that a spec takes from the hub."""
    data = TYPES["prepare", "spec"](read_settings(spec), spec)
    if not isinstance(data, RealSpec):
        return
    answers = (*data.benchmarks.values(), *data.references.values(), *data.code.values())
    named = (*data.preference, *data.prompts, *answers)
    for name in dict.fromkeys(named) if data.sets else ():
        hub_set = data.sets[name]
        if not Path(hub_set.path).exists():
            given = (hub_set.data_files or {}).values()
            files = ", ".join(file for one in given for file in ([one] if isinstance(one, str) else one))
            yield f"{name}: {files or hub_set.path}"
    for column, choice in data.tasks.items():
        if choice.rows is None:
            yield f"{column}: the data set of lm-evaluation-harness's task {choice.task}"


def _problem() -> str | None:
    """Returns why the hub cannot be reached, None if it answers."""
    import httpx

    if is_offline():
        return "HF_HUB_OFFLINE is set"
    try:
        httpx.head(os.environ.get("HF_ENDPOINT", ENDPOINT), timeout=PATIENCE)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    return None


def is_offline() -> bool:
    """Returns whether the user keeps this process from asking the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def refuse_unknown_model(model: str) -> None:
    """Asks the hub once whether it has a model that its cache here lacks, where it may be asked.

    Raises:
        DataError: the hub has no such model, or does not answer.
        ValueError: no hub id.
    """
    import httpx
    from huggingface_hub import get_token, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str) or is_offline():
        return
    address = f"{os.environ.get('HF_ENDPOINT', ENDPOINT)}/api/models/{model}"
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        status = httpx.get(address, timeout=PATIENCE, headers=headers, follow_redirects=True).status_code
    except httpx.HTTPError as error:
        problem = f"no such folder, and the hub does not answer ({str(error) or type(error).__name__})"
        raise DataError(problem, file=model, remedy="Give a folder, or a hub id while the hub answers") from None
    if status in (401, 404):
        problem = "no such folder, and the hub has no model of this name that you may read"
        raise DataError(problem, file=model, remedy="Check the spelling; a private model needs HF_TOKEN")
