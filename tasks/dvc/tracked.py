"""Folders that DVC tracks by a file `<name>.dvc`: their files, as copies in DVC's cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlhf_core.errors import DataError, RewardsmithError
from tasks.dvc.cache_digests import drop_damaged_copy
from tasks.dvc.internals import open_repo


def tracked_files(root: Path, named: Path) -> Mapping[str, Path]:
    """Returns the files of a folder that DVC tracks, each with its copy in DVC's cache; fetches missing and damaged
    copies.

    Args:
        root: the repository.
        named: the `.dvc` file, relative to the root.

    Raises:
        DataError: DVC cannot read the file.
        RewardsmithError: neither the cache nor a remote has all files.
    """
    from dvc.exceptions import DvcException
    from dvc_data.hashfile.tree import Tree
    from dvc_objects.errors import ObjectFormatError

    missing = ""
    with open_repo(root) as repo:
        for fetched in (False, True):
            if fetched:
                try:
                    repo.fetch([str(root / named)])
                except (DvcException, RecursionError) as error:  # a list of files may be nested too deeply
                    missing = str(error)
            try:
                [stage] = repo.stage.load_all(str(root / named))
                cache, digest = repo.cache.local, stage.outs[0].hash_info
                drop_damaged_copy(Path(cache.oid_to_path(str(digest.value))))
                copies = {
                    "/".join(parts): Path(cache.oid_to_path(info.value)) for parts, _, info in Tree.load(cache, digest)
                }
            except FileNotFoundError as error:
                missing = missing or str(error)
                continue
            except (DvcException, ObjectFormatError) as error:
                raise DataError(
                    f"DVC cannot read it ({error})", file=str(root / named), remedy=f"git checkout {named}, or dvc pull"
                ) from None
            for path in copies.values():
                drop_damaged_copy(path)
            lost = [str(path) for path in copies.values() if not path.exists()]
            if not lost:
                return copies
            missing = missing or lost[0]
    raise RewardsmithError(f"{root / named} names files that neither DVC's cache nor a remote has ({missing})")
