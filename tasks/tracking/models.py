"""The MLflow model registry: every reward model and policy that has a run, by pointer, with aliases.

A registered model is `<paper>-policy-<row>` or `<paper>-reward-model-<name>`, outside the testbed
`<paper>-<scale>-policy-<row>`; a version is one result of it. The alias `seed-<n>` is the newest result of a seed;
others (`champion`) are set by people. Weights stay in DVC: a version's source is the small folder `model/` of its run,
with the DVC path and the digest (`tasks.tracking.model_folder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import RecipeError, RewardsmithError, hint
from tasks.params.scales import DEFAULT_SCALE
from tasks.tracking.model_folder import FOLDER

KINDS = {"policy": "policy", "reward_model": "reward-model"}
#: MLflow's errors for a model or an alias that does not exist.
UNKNOWN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
#: Most models that MLflow names at once.
MOST_MODELS = 1000


def model_name(paper: str, scale: str, kind: str, name: str) -> str | None:
    """Returns the name of the registered model of a kind of stage's result; None for what is not registered."""
    group = paper if scale == DEFAULT_SCALE else f"{paper}-{scale}"
    return f"{group}-{KINDS[kind]}-{name}" if kind in KINDS else None


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


class Registry:
    """The models of one MLflow client: registers results, and looks them up by alias."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def register(self, name: str, run: Any, tags: Mapping[str, str]) -> None:
        """Makes a version of a run's result and points its seed's alias at it; the same run again changes nothing.

        Args:
            name: of the registered model.
            run: of the result, with its model.
            tags: seed, digest, path and stage among them.
        """
        from mlflow.exceptions import MlflowException

        alias = f"seed-{tags['seed']}"
        try:
            if self.client.get_model_version_by_alias(name, alias).run_id == run.info.run_id:
                return
        except MlflowException as error:
            if error.error_code not in UNKNOWN:
                raise
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        kept = {key: tags[key] for key in ("seed", "digest", "path", "stage", "commit", "scale", "paper")}
        source = f"{run.info.artifact_uri}/{FOLDER}"
        known = self.client.search_model_versions(f"run_id='{run.info.run_id}'")  # of a sync that was killed
        made = known[0] if known else self.client.create_model_version(name, source, run.info.run_id, tags=kept)
        self.client.set_registered_model_alias(name, alias, made.version)

    def resolve(self, name: str, alias: str) -> Registered:
        """Returns the version behind an alias.

        Raises:
            RecipeError: no such model or alias, with the known ones.
        """
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.get_model_version_by_alias(name, alias)
        except MlflowException as error:
            if error.error_code not in UNKNOWN:
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
            names = {model.name for model in self.client.search_registered_models(max_results=MOST_MODELS)}
            nearest_ones = hint(name, sorted(names), more=3) if names else "; none is registered: rewardsmith sync"
            return f"the registry has no model '{name}'{nearest_ones}"
        near = hint(alias, sorted(aliases), more=3)
        return f"the model {name} has no alias '{alias}' (set it: rewardsmith promote {name}){near}"

    def promote(self, name: str, alias: str, seed: int) -> Registered:
        """Points an alias at the newest result of a seed.

        Raises:
            RecipeError: an unknown model or seed, or a name that MLflow does not take as an alias.
        """
        from mlflow.exceptions import MlflowException

        found = self.resolve(name, f"seed-{seed}")
        try:
            self.client.set_registered_model_alias(name, alias, found.version)
        except MlflowException as error:
            raise RecipeError(f"the alias '{alias}' cannot be set: {error}") from None
        return found
