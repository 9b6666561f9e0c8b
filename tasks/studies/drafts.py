"""Differences between the drafts of a study, earlier commits of its file, and the registered one.

Whoever drops a hypothesis or a reading after tuning or a pilot has seen numbers by then; so the study's page says it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.params.studies import FOLDER
from tasks.params.yaml_files import parse_mapping
from tasks.studies.git_history import changes, contents_at

#: Fields of a study that decide what it finds.
DECIDING = ("metric", "worlds", "margin", "main", "kl_targets")
#: Fields whose entries have names.
NAMED = ("hypotheses", "rows", "dials")


def draft_changes(root: Path, study: str) -> list[str]:
    """Returns a sentence on what a study's drafts had otherwise; none where that is words, costs and settings alone.

    Raises:
        DataError: a shallow clone, in which the history is not known.
    """
    file = (FOLDER / f"{study}.yaml").as_posix()
    commits = changes(root, file).get(file, [])
    own = (root / file).read_text(encoding="utf-8")
    now = parse_mapping(own, file)
    drafts = [draft for text in contents_at(root, commits, file).values() if text != own and (draft := _mapping(text))]
    found = [*_changed_fields(now, drafts), *_changed_names(now, drafts)]
    return [f"drafts of the study differ (git log -p {file}): {'; '.join(found)}"] if found else []


def _mapping(text: str) -> Mapping[str, Any] | None:
    """Returns a draft; None for one that nothing could run, as it is no YAML mapping."""
    try:
        return parse_mapping(text, FOLDER.as_posix())
    except RewardsmithError:
        return None


def _changed_fields(now: Mapping[str, Any], drafts: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    values = {field: [draft.get(field) for draft in drafts] for field in DECIDING}
    values["primary hypothesis"] = [next(iter(_names(draft, "hypotheses")), None) for draft in drafts]
    registered = {**now, "primary hypothesis": next(iter(_names(now, "hypotheses")), None)}
    for field, earlier in values.items():
        own = _said(registered.get(field))
        others = [said for said in dict.fromkeys(map(_said, earlier)) if said != own]
        if others:
            yield f"{field} {' or '.join(others)}, now {own}"


def _changed_names(now: Mapping[str, Any], drafts: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for field in NAMED:
        own = _names(now, field)
        earlier = [(name, value) for draft in drafts for name, value in _names(draft, field).items()]
        dropped = dict.fromkeys(f"'{name}'" for name, _ in earlier if name not in own)
        if dropped:
            yield f"{field} {', '.join(dropped)} dropped"
        if field == "hypotheses":
            tested = [(name, _tested(value)) for name, value in earlier if name in own]
            changed = dict.fromkeys(f"'{name}'" for name, value in tested if value != _tested(own[name]))
            if changed:
                yield f"hypotheses {', '.join(changed)} changed"


def _names(study: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = study.get(field)
    return value if isinstance(value, Mapping) else {}


def _tested(hypothesis: Any) -> Any:
    """Returns what a hypothesis tests, without its words."""
    if not isinstance(hypothesis, Mapping):
        return hypothesis
    return {name: value for name, value in hypothesis.items() if name != "says"}


def _said(value: Any) -> str:
    return "none" if value is None or value == [] else str(value)
