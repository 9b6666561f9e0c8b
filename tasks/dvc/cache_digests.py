"""Digests of outputs in the tree and in DVC's cache, compared with those in lock files and in stages' records.

DVC trusts a file of its cache that is read-only, so a damaged one is restored without a word. What comes from a cache
or a remote is compared here: with its digest, and with the stage and the inputs that its record names.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.params.pages import Address
from tasks.running.artifacts import digest, input_digest

MD5 = re.compile(r"[0-9a-f]{32}")


def content_digest(path: Path) -> str:
    """Returns DVC's digest of a file or directory, from its content and not from what DVC noted about it."""
    from dvc_data.hashfile.hash import file_md5
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.tree import Tree

    if not path.is_dir():
        return file_md5(str(path))
    tree = Tree()
    for file in path.rglob("*"):
        if file.is_file():
            tree.add(file.relative_to(path).parts, None, HashInfo("md5", file_md5(str(file))))
    tree.digest()
    return str(tree.hash_info.value)


def has_locked_content(out: Any) -> bool:
    """Returns whether an output of the tree has the content that dvc.lock names."""
    path = Path(out.fs_path)
    return path.exists() and content_digest(path) == out.hash_info.value


def damaged_outputs(outs: Iterable[Any]) -> list[Any]:
    """Returns the outputs of a stage whose content is another one than when the stage made them.

    A `result/` is compared with the `result_digest` of the record beside it, everything else with DVC's digest.
    """
    found = []
    for out in outs:
        path = Path(out.fs_path)
        noted = _record(path).get("result_digest") if path.name == "result" else None
        whole = has_locked_content(out) if noted is None else path.exists() and digest(path) == noted
        if not whole:
            found.append(out)
    return found


def _record(result: Path) -> Mapping[str, Any]:
    """Returns the record beside a result; empty without a readable one."""
    try:
        found = json.loads((result.parent / "record" / "record.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def made_by_another_run(out: Any) -> bool:
    """Returns whether a `result/` is another stage's, or was made from other inputs than the tree has, by its record.

    A record that does not name its output, and inputs that are not in this tree, say nothing.
    """
    result, root = Path(out.fs_path), Path(out.repo.root_dir)
    record = _record(result) if result.name == "result" else {}
    if "out" not in record:
        return False
    named = {str(Path(word)) for word in (*shlex.split(out.stage.cmd), *(dep.def_path for dep in out.stage.deps))}
    inputs = record.get("inputs")
    if root / str(record["out"]) != result.parent or not isinstance(inputs, dict) or not inputs.keys() <= named:
        return True
    return any(_digest_here(root, name) not in (None, known) for name, known in inputs.items())


def _digest_here(root: Path, name: str) -> str | None:
    """Returns the digest of a stage's input in this tree, None for one that is not there."""
    try:
        return input_digest(Address(name).under(root))
    except (OSError, RewardsmithError):
        return None


def damaged_folder_list(repo: Any, value: str) -> Path | None:
    """Returns the cache's list of a folder's files that DVC must not read, if it is one: its content is not what its
    name says, or it names files outside the folder.

    Args:
        repo: the repository.
        value: DVC's digest of an output.
    """
    if not value.endswith(".dir") or not MD5.fullmatch(value.removesuffix(".dir")):
        return None
    copy = Path(repo.cache.local.oid_to_path(value))
    return copy if copy.exists() and not _sound_list(copy) else None


def _sound_list(copy: Path) -> bool:
    """Returns whether a list has the content that its name says, and names files below their folder, each once."""
    try:
        entries = json.loads(copy.read_bytes())
        if content_digest(copy) != copy.parent.name + copy.name.removesuffix(".dir"):
            return False
        paths = [tuple(str(entry["relpath"]).split("/")) for entry in entries]
        known = all(MD5.fullmatch(entry["md5"]) for entry in entries)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return False
    plain = not any(part in ("", ".", "..") or "\0" in part for path in paths for part in path)
    folders = {path[:length] for path in paths for length in range(1, len(path))}
    return known and plain and len({*paths}) == len(paths) and folders.isdisjoint(paths)


def drop_damaged_folder_lists(repo: Any, values: Iterable[str]) -> int:
    """Removes damaged lists of folders' files from the cache, by DVC's digests; returns how many."""
    found = {copy for value in values if (copy := damaged_folder_list(repo, value)) is not None}
    for copy in found:
        copy.chmod(0o644)
        copy.unlink()
    return len(found)


def drop_damaged_copy(copy: Path) -> None:
    """Removes a file of DVC's cache whose content is not what its name says."""
    digest = copy.parent.name + copy.name.removesuffix(".dir")
    if copy.exists() and content_digest(copy) != digest:
        copy.chmod(0o644)
        copy.unlink()


def remove_with_cache(repo: Any, out: Any) -> None:
    """Removes an output and its damaged files in DVC's cache."""
    from dvc_data.hashfile.tree import Tree

    cache = repo.cache.local
    digests = [out.hash_info.value]
    with suppress(Exception):  # a damaged list of a directory's files names none
        digests += [info.value for _, _, info in Tree.load(cache, out.hash_info) if info]
    with repo.lock:
        out.remove()
        for name in digests:
            drop_damaged_copy(Path(cache.oid_to_path(name)))
