"""Tasks of lm-evaluation-harness, built from its own task files, on rows that are given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
from lm_eval.api.group import Group
from lm_eval.tasks import TaskManager
from lm_eval.tasks._factory import TaskFactory

from rlhf_core.errors import DataError
from rlhf_core.evaluation.harness.choice import HarnessTask, check_task, task_files

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of every default that is kept

#: Data set, its configuration, and split.
Place = tuple[str, str | None, str]
#: Place -> rows in the data set's columns.
RowsOf = Callable[[str, str | None, str], Sequence[Mapping[str, Any]]]
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


class GivenRows(TaskFactory):
    """A factory of tasks whose data sets are given instead of downloaded.

    Args:
        rows_of: gives the rows; None reads the tasks' configurations and builds none.
        shots: examples before each question; None for as many as the task file says.
    """

    def __init__(self, rows_of: RowsOf | None, shots: int | None) -> None:
        super().__init__()
        self.rows_of, self.shots = rows_of, shots
        self.configs: dict[str, dict[str, Any]] = {}

    def manager(self, name: str) -> TaskManager:
        """Returns the harness's manager of a task or group, which knows the task files beside it only.

        Raises:
            RecipeError: a name that the harness does not have.
        """
        check_task(name, "lm-evaluation-harness")
        manager = TaskManager(include_defaults=False, include_path=task_files()[name].parent)
        manager._factory = self
        return manager

    def _build_task(self, entry: Any, overrides: dict[str, Any] | None) -> Any:
        config = self.configs[entry.name] = self._load_full_config(entry, overrides)
        if self.rows_of is None:
            return Group(name=entry.name)
        found = {
            place[2]: datasets.Dataset.from_list([dict(row) for row in self.rows_of(*place)])
            for place in self.places(config)
        }
        # a task file also names splits that nothing is read from, such as training questions beside a test
        unread = {key: None for key in _SPLITS if config.get(key) is not None and config[key] not in found}
        given = {"custom_dataset": lambda **_: datasets.DatasetDict(found), **unread}
        return super()._build_task(entry, {**(overrides or {}), **given})

    def count(self, config: Mapping[str, Any]) -> int:
        """Returns the number of examples before each question of a task."""
        return int((config.get("num_fewshot") if self.shots is None else self.shots) or 0)

    def places(self, config: Mapping[str, Any]) -> list[Place]:
        """Returns what a task reads: its questions, and its examples where it has any."""
        splits = [config.get("test_split") or config.get("validation_split")]
        if self.count(config):
            named = ("fewshot_split", "training_split", "validation_split")
            splits.append(next((config[key] for key in named if config.get(key)), splits[0]))
        return [(config["dataset_path"], config.get("dataset_name"), str(split)) for split in dict.fromkeys(splits)]


def task_configs(name: str) -> dict[str, dict[str, Any]]:
    """Returns the configurations of the tasks behind a name, several for a group, read without their data."""
    reading = GivenRows(None, None)
    reading.manager(name).load([name])
    return reading.configs


def task_rows(choice: HarnessTask, rows_of: RowsOf) -> tuple[dict[Place, list[dict[str, Any]]], int]:
    """Returns the rows that a task reads, by place, and the number of its questions.

    Raises:
        DataError: fewer rows to draw examples from than examples.
    """
    reading, found, questions = GivenRows(None, choice.shots), dict[Place, list[dict[str, Any]]](), 0
    for config in task_configs(choice.task).values():
        places = reading.places(config)
        for place in places:
            found[place] = [dict(row) for row in rows_of(*place)]
        questions += len(found[places[0]])
        (data_set, name, split), count = places[-1], reading.count(config)
        if len(found[places[-1]]) < count:
            raise DataError(
                f"{len(found[places[-1]])} rows to take {count} examples from",
                file=f"{name or data_set}.{split}",
                remedy=f"Give more rows, or set shots of the task {choice.task}",
            )
    return found, questions
