"""Digests of outputs in the tree and in DVC's cache, compared with those in lock files and in stages' records.

DVC trusts a file of its cache that is read-only, so a damaged one is restored without a word. What comes from a cache
or a remote is compared here with its record, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.running.artifacts import digest
from tasks.running.platform_state import read_private
from tasks.running.result_digests import RECORD, RESULT


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


def damaged_outputs(outs: Iterable[Any]) -> list[Any]:
    """Returns the outputs in the tree whose content is another one than when their stage made them.

    A `result/` is compared with the `result_digest` of the record beside it, everything else with DVC's digest.
    """
    found = []
    for out in outs:
        path = Path(out.fs_path)
        record = read_private(path.parent / RECORD) if path.name == RESULT else {}
        if "result_digest" in record:
            whole = path.exists() and digest(path) == record["result_digest"]
        else:
            whole = path.exists() and content_digest(path) == out.hash_info.value
        if not whole:
            found.append(out)
    return found


def is_damaged(copy: Path) -> bool:
    """Returns whether a file of DVC's cache has another content than its name says."""
    return copy.exists() and content_digest(copy) != copy.parent.name + copy.name.removesuffix(".dir")


def drop_damaged_copy(copy: Path) -> None:
    """Removes a damaged file of DVC's cache."""
    if is_damaged(copy):
        copy.chmod(0o644)
        copy.unlink()


def remove_with_cache(repo: Any, out: Any) -> None:
    """Removes an output and its damaged files in DVC's cache."""
    from dvc_data.hashfile.tree import Tree

    cache = repo.cache.local
    digests = [out.hash_info.value]
    with suppress(Exception):  # a damaged list of a directory's files names none
        digests += [info.value for _, _, info in Tree.load(cache, out.hash_info) if info]
    out.remove()
    for name in digests:
        drop_damaged_copy(Path(cache.oid_to_path(name)))
