"""A result as a model of MLflow: loaded from a clone by its pointer, after its digest is compared.

A reward model gives the reward of each prompt and response of a table, a policy a response to each prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc.model import PythonModel

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.models.sampling import Sampling
from rlhf_core.segmentation.segmenters import segmenter_class
from tasks.evaluating.policies import answer
from tasks.running.artifacts import digest, read_json
from tasks.running.loading import load_encoder, load_policy
from tasks.scoring.reward_models import MARKS, RewardModelInputs, TrainedScorer
from tasks.scoring.zero_shot import is_zero_shot

#: Prompts that a policy answers at a time.
BATCH = 16

Predict = Callable[[pd.DataFrame, Mapping[str, Any]], pd.DataFrame]


def project_folder(stated: str) -> Path:
    """Returns the clone with the results: the one stated, else the working directory.

    Raises:
        DataError: it is not a clone with DVC.
    """
    folder = Path(stated).resolve()
    if not (folder / ".dvc").is_dir():
        remedy = "Name the clone that has the results: load_model(..., model_config={'project': 'my/clone'})"
        raise DataError("not a clone with DVC", file=str(folder), remedy=remedy)
    return folder


@dataclass(frozen=True)
class Pointed:
    """A result that a pointer names, with those that its stage read.

    Attributes:
        project: the clone.
        stage: DVC's name of the result's stage.
        result, digest: the result, relative to the project.
        inputs: digests of what the stage read, by path.
    """

    project: Path
    stage: str
    result: str
    digest: str
    inputs: Mapping[str, str]

    def folder(self) -> Path:
        """Returns the folder of the result.

        Raises:
            DataError: the project does not have it, or has another one.
        """
        return self._checked(self.result, self.digest, self.stage)

    def input(self, name: str) -> Path:
        """Returns the folder of a result that the stage read, by its name in `MARKS`.

        Raises:
            DataError: the project does not have it, or has another one.
        """
        for path, wanted in self.inputs.items():
            if MARKS[name](self.project / path):
                return self._checked(path, wanted, path)
        lost = [path for path in self.inputs if path.startswith("results/") and not (self.project / path).exists()]
        raise DataError(
            f"it reads the result '{name}', which the project lacks",
            file=str(self.project / self.result),
            remedy=f"In {self.project}: dvc pull {' '.join(lost)}",
        )

    def _checked(self, path: str, wanted: str, target: str) -> Path:
        """Returns a folder of the project that has the wanted digest; `target` is DVC's name of it."""
        folder = self.project / path
        if not folder.is_dir():
            raise DataError("the project lacks it", file=str(folder), remedy=f"In {self.project}: dvc pull {target}")
        if (found := digest(folder)) != wanted:
            raise DataError(
                f"its digest is {found[:12]}, that of the model {wanted[:12]}: the project has another result there",
                file=str(folder),
                remedy=f"Restore it (dvc checkout {target}) at a commit whose dvc.lock has it, or load the model of "
                "the present result (rewardsmith sync)",
            )
        return folder


def reward_model(pointed: Pointed) -> Predict:
    """Returns the rewards of prompts with responses, as the stages score them.

    Raises:
        RecipeError: a reward model that is asked instead of trained.
    """
    result = pointed.folder()
    if is_zero_shot(result):
        raise RecipeError(f"{result}: this reward model is asked, and has no weights to load")
    cutter = segmenter_class(ScalarModel.training_settings(result / "model")["segmenter"])
    above = RewardModelInputs(
        data=pointed.input("data"),
        sft=pointed.input("sft") if cutter.needs_entropies else None,
        sentences=pointed.input("segmenter") if hasattr(cutter, "of_stage") else None,
    )
    scorer = TrainedScorer.load(result, above)

    def rewards(table: pd.DataFrame, params: Mapping[str, Any]) -> pd.DataFrame:
        rows = [{"prompt": prompt} for prompt in table["prompt"]]
        found = scorer(rows, list(table["response"])) if rows else []
        return pd.DataFrame({"reward": np.array(found, dtype=np.float32)}, index=table.index)

    return rewards


def policy(pointed: Pointed) -> Predict:
    """Returns a policy's responses to prompts; params are those of the signature."""
    folder = pointed.folder() / "model"
    encoder = load_encoder(pointed.input("data"), folder)
    trained = load_policy(folder, encoder)
    trained.model.eval()

    def responses(table: pd.DataFrame, params: Mapping[str, Any]) -> pd.DataFrame:
        sampling = Sampling(**{name: params[name] for name in ("max_new_tokens", "temperature", "top_p")})
        rows = [{"prompt": prompt, "opening": params["opening"]} for prompt in table["prompt"]]
        texts = [text for text, _ in answer(trained, encoder, rows, sampling, params["seed"], BATCH)]
        return pd.DataFrame({"response": texts}, index=table.index)

    return responses


LOADERS: Mapping[str, Callable[[Pointed], Predict]] = {"reward_model": reward_model, "policy": policy}


class ResultModel(PythonModel):
    """A reward model or policy that is loaded from the clone that has its result."""

    def load_context(self, context: Any) -> None:
        """Loads the result that the model's pointer names.

        Raises:
            DataError: the project does not have the result, or has another one.
            RecipeError: a result without weights.
        """
        project = project_folder(context.model_config["project"])
        found = read_json(Path(context.artifacts["pointer"]))
        pointed = Pointed(project, **{name: found[name] for name in ("stage", "result", "digest", "inputs")})
        self._predict = LOADERS[found["kind"]](pointed)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Returns a row for each row of the table."""
        return self._predict(model_input, params or {})
