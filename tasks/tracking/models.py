"""The MLflow model registry: every reward model and policy that has a run, by pointer, with aliases.

A registered model is `<paper>-policy-<row>` or `<paper>-reward-model-<name>`, outside the testbed
`<paper>-<scale>-policy-<row>`; a version is one result of it. The alias `seed-<n>` is the newest result of a seed;
others (`champion`) are set by people. Weights stay in DVC: a version's source is the small folder `model/` of its run,
with the DVC path and the digest (`tasks.tracking.model_folder`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import RecipeError, RewardsmithError, hint
from tasks.params.settings import DEFAULT_SCALE
from tasks.tracking.model_folder import FOLDER

KINDS = {"policy": "policy", "reward_model": "reward-model"}
ALIAS = re.compile(r"[a-z][a-z0-9_-]*")
PAGE = 1000


def kind_of(stage: str) -> str:
    """Returns the module of a stage's address, such as policy."""
    return stage.rpartition(":")[2].partition("@")[0].partition("-")[0]


def model_name(paper: str, scale: str, stage: str, name: str) -> str | None:
    """Returns the name of the registered model of a stage's result; None for what is not registered."""
    kind = KINDS.get(kind_of(stage))
    group = paper if scale == DEFAULT_SCALE else f"{paper}-{scale}"
    return f"{group}-{kind}-{name}" if kind else None


@dataclass(frozen=True)
class Registered:
    """One version of a registered model.

    Attributes:
        name, version, alias: as MLflow knows it.
        run: id of the run that it came from.
        digest: of the result folder.
        path: the result folder, relative to the repository.
        stage: its DVC stage.
        commit: at which it was made; empty where the record names none.
    """

    name: str
    version: str
    alias: str
    run: str
    digest: str
    path: str
    stage: str
    commit: str = ""


def _mark(tags: Mapping[str, str]) -> str:
    """Returns the seed and digest of a result, by which its version is known."""
    return f"{tags.get('seed')}/{tags.get('digest')}"


def pages(search: Callable[..., Any], query: str) -> Iterator[Any]:
    """Yields everything that a paged search of MLflow finds."""
    token = None
    while True:
        page = search(query, max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


class Registry:
    """Registers results, and looks them up by alias."""

    def __init__(self, client: Any, paper: str | None = None) -> None:
        self.client = client
        self.known: dict[str, dict[str, str]] = {}
        self.aliases: dict[str, dict[str, str]] = {}
        if paper is not None:
            self._read(paper)

    def _read(self, paper: str) -> None:
        """Reads the known versions, by model and seed with digest, the newest of each; and where every alias points."""
        query = f"name LIKE '{paper}-%'"
        for version in sorted(pages(self.client.search_model_versions, query), key=lambda found: int(found.version)):
            self.known.setdefault(version.name, {})[_mark(version.tags)] = str(version.version)
        for model in pages(self.client.search_registered_models, query):
            self.aliases[model.name] = {alias: str(version) for alias, version in model.aliases.items()}

    def register(self, name: str, run: Any, tags: Mapping[str, str]) -> None:
        """Makes a version for a run's result and points its seed's alias at it; the same result again changes nothing.

        A result that comes back after another, or whose alias a kill left unset, takes the alias again.

        Args:
            name: of the registered model.
            run: of the result, with its model.
            tags: seed, digest, path and stage among them.
        """
        mark, alias = _mark(tags), f"seed-{tags['seed']}"
        version = self.known.get(name, {}).get(mark)
        pointed = self.aliases.setdefault(name, {})
        if version is not None and pointed.get(alias) == version:
            return
        if version is None or not self._has_run(name, version):
            if name not in self.known:
                self._create(name)
            kept = {key: tags[key] for key in ("seed", "digest", "path", "stage", "commit", "scale", "paper")}
            source = f"{run.info.artifact_uri}/{FOLDER}"
            made = self.client.create_model_version(name, source, run_id=run.info.run_id, tags=kept)
            version = str(made.version)
            self.known.setdefault(name, {})[mark] = version
        self.client.set_registered_model_alias(name, alias, version)
        pointed[alias] = version

    def _has_run(self, name: str, version: str) -> bool:
        """Returns whether a version's run is there: that of a result which another took the place of is deleted."""
        from mlflow.exceptions import MlflowException

        try:
            run = self.client.get_run(self.client.get_model_version(name, version).run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return bool(run.info.lifecycle_stage == "active")

    def _create(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def resolve(self, name: str, alias: str) -> Registered:
        """Returns the version behind an alias.

        Raises:
            RecipeError: no such model or alias, with the known ones.
        """
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.get_model_version_by_alias(name, alias)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise RewardsmithError(f"the model registry cannot be read: {error}") from None
            raise RecipeError(self._unknown(name, alias)) from None
        tags = found.tags
        version, result = str(found.version), f"{tags['path']}/result"
        run, commit = str(found.run_id), tags.get("commit", "")
        return Registered(name, version, alias, run, tags["digest"], result, tags["stage"], commit)

    def _unknown(self, name: str, alias: str) -> str:
        from mlflow.exceptions import MlflowException

        try:
            aliases = self.client.get_registered_model(name).aliases
        except MlflowException:
            names = {model.name for model in self.client.search_registered_models(max_results=PAGE)}
            nearest_ones = hint(name, sorted(names), more=3) if names else "; none is registered: rewardsmith sync"
            return f"the registry has no model '{name}'{nearest_ones}"
        near = hint(alias, sorted(aliases), more=3)
        return f"the model {name} has no alias '{alias}' (set it: rewardsmith promote {name}){near}"

    def promote(self, name: str, alias: str, seed: int) -> Registered:
        """Points an alias at the newest result of a seed.

        Raises:
            RecipeError: a name that is no alias, or an unknown model or seed.
        """
        if not ALIAS.fullmatch(alias) or re.fullmatch(r"seed-\d+|v\d+|latest", alias):
            raise RecipeError(
                f"'{alias}' is not an alias: use small letters, digits, '-' and '_'; seed-<n> is set automatically"
            )
        found = self.resolve(name, f"seed-{seed}")
        self.client.set_registered_model_alias(name, alias, found.version)
        return found

    def tag(self, model: Registered, values: Mapping[str, str]) -> None:
        """Tags on the version, and on its run where that is still there.

        Raises:
            RewardsmithError: MLflow refuses, or cannot be reached.
        """
        from mlflow.exceptions import MlflowException

        try:
            for key, value in values.items():
                self.client.set_model_version_tag(model.name, model.version, key, value)
            if self._has_run(model.name, model.version):
                for key, value in values.items():
                    self.client.set_tag(model.run, key, value)
        except MlflowException as error:
            raise RewardsmithError(f"version {model.version} of {model.name} cannot be tagged: {error}") from None
