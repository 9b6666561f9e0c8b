"""Tasks of lm-evaluation-harness, built from its own task files, on rows that are given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
from lm_eval.api.group import Group
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._factory import TaskFactory

from rlhf_core.errors import DataError
from rlhf_core.evaluation.harness.choice import HarnessTask, check_task, task_files

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of every default that is kept

#: (data set, its configuration, split) -> rows in the data set's columns.
RowsOf = Callable[[str, str | None, str], Sequence[Mapping[str, Any]]]


class GivenRows(TaskFactory):
    """A factory of tasks whose data sets are given instead of downloaded."""

    def __init__(self, rows_of: RowsOf, shots: int | None) -> None:
        super().__init__()
        self.rows_of, self.shots = rows_of, shots

    def _build_task(self, entry: Any, overrides: dict[str, Any] | None) -> Task:
        config = self._load_full_config(entry, overrides)
        data_set, name = config["dataset_path"], config.get("dataset_name")
        found = {
            split: datasets.Dataset.from_list([dict(row) for row in self.rows_of(data_set, name, split)])
            for split in splits_of(config, self.shots)
        }
        # a task file also names splits that nothing is read from, such as training questions beside a test
        unread = {key: None for key in _SPLITS if config.get(key) is not None and config[key] not in found}
        given = {"custom_dataset": lambda **_: datasets.DatasetDict(found), **unread}
        return super()._build_task(entry, {**(overrides or {}), **given})


_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def splits_of(config: Mapping[str, Any], shots: int | None) -> list[str]:
    """Returns the splits of its data set that a task reads: of questions, and of examples where it has any."""
    asked = str(config.get("test_split") or config.get("validation_split"))
    count = config.get("num_fewshot") if shots is None else shots
    if not count:
        return [asked]
    examples = config.get("fewshot_split") or config.get("training_split") or config.get("validation_split") or asked
    return list(dict.fromkeys([asked, str(examples)]))


def manager_of(name: str, factory: TaskFactory) -> TaskManager:
    """Returns the harness's manager of a task or group, which knows the task files beside it only.

    Args:
        name: of a task or group.
        factory: builds tasks.

    Raises:
        RecipeError: a name that the harness does not have.
    """
    check_task(name, "lm-evaluation-harness")
    manager = TaskManager(include_defaults=False, include_path=task_files()[name].parent)
    manager._factory = factory
    return manager


class _Reading(TaskFactory):
    """A factory that reads the configurations of tasks and builds none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[str, Any]] = {}

    def _build_task(self, entry: Any, overrides: dict[str, Any] | None) -> Any:
        self.found[entry.name] = self._load_full_config(entry, overrides)
        return Group(name=entry.name)


def task_configs(name: str) -> dict[str, dict[str, Any]]:
    """Returns the configurations of the tasks behind a name, several for a group, read without their data."""
    reading = _Reading()
    manager_of(name, reading).load([name])
    return reading.found


def asked_split(name: str) -> list[tuple[str, str | None, str]]:
    """Returns the data set, configuration and split of the questions of each task behind a name."""
    return [
        (config["dataset_path"], config.get("dataset_name"), splits_of(config, 0)[0])
        for config in task_configs(name).values()
    ]


def task_rows(choice: HarnessTask, rows_of: RowsOf) -> dict[tuple[str, str | None, str], list[dict[str, Any]]]:
    """Returns the rows that a task reads, by data set, configuration and split.

    Raises:
        DataError: fewer rows to draw examples from than examples.
    """
    found: dict[tuple[str, str | None, str], list[dict[str, Any]]] = {}
    for config in task_configs(choice.task).values():
        data_set, name = config["dataset_path"], config.get("dataset_name")
        splits = splits_of(config, choice.shots)
        for split in splits:
            found[data_set, name, split] = [dict(row) for row in rows_of(data_set, name, split)]
        count = config.get("num_fewshot") if choice.shots is None else choice.shots
        if count and len(found[data_set, name, splits[-1]]) < count:
            raise DataError(
                f"{len(found[data_set, name, splits[-1]])} rows to take {count} examples from",
                file=f"{name or data_set}.{splits[-1]}",
                remedy=f"Give more rows, or set shots of the task {choice.task}",
            )
    return found
