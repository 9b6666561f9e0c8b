"""Content of outputs against the digests that DVC and the stages' records hold for it.

DVC trusts a file of its cache that is read-only, so a damaged one is restored without a word. What comes from a cache
or a remote is compared here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.running.artifacts import digest


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


def matches(out: Any) -> bool:
    """Returns whether an output of the tree has the content that dvc.lock names."""
    path = Path(out.fs_path)
    return path.exists() and content_digest(path) == out.hash_info.value


def damaged(outs: Iterable[Any]) -> list[Any]:
    """Returns the outputs of a stage whose content is another one than when the stage made them.

    A `result/` is compared with the `result_digest` of the record beside it, everything else with DVC's digest.
    """
    found = []
    for out in outs:
        path, noted = Path(out.fs_path), None
        if path.name == "result":
            with suppress(OSError, ValueError, AttributeError):
                noted = json.loads((path.parent / "record" / "record.json").read_bytes()).get("result_digest")
        whole = matches(out) if noted is None else path.exists() and digest(path) == noted
        if not whole:
            found.append(out)
    return found


def forget(repo: Any, out: Any) -> None:
    """Removes an output and its damaged files in DVC's cache."""
    from dvc_data.hashfile.tree import Tree

    cache = repo.cache.local
    digests = [out.hash_info.value]
    with suppress(Exception):  # a damaged list of a directory's files names none
        digests += [info.value for _, _, info in Tree.load(cache, out.hash_info) if info]
    with repo.lock:
        out.remove()
        for name in digests:
            path = Path(cache.oid_to_path(name))
            if path.exists() and content_digest(path) != name.removesuffix(".dir"):
                path.chmod(0o644)
                path.unlink()
