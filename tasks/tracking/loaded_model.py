"""A result as a model of MLflow: loaded from a clone by its pointer, after its digest is compared.

A reward model gives the reward of each prompt and response of a table, a policy a response to each prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc.model import PythonModel

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.sampling import Sampling
from tasks.evaluating.policies import answer
from tasks.running.artifacts import digest, read_json
from tasks.running.loading import load_encoder, load_policy
from tasks.scoring.classifiers import is_zero_shot
from tasks.scoring.reward_models import MARKS, TrainedScorer, upstream

#: Prompts that a policy answers at a time.
BATCH = 16

Predict = Callable[[pd.DataFrame, Mapping[str, Any]], pd.DataFrame]


def reward_model(result: Path) -> Predict:
    """Returns the rewards of prompts with responses, as the stages score them.

    Raises:
        RecipeError: a reward model that is asked instead of trained.
    """
    if is_zero_shot(result):
        raise RecipeError(f"{result}: this reward model is asked, and has no weights to load")
    scorer = TrainedScorer.load(result)

    def rewards(table: pd.DataFrame, params: Mapping[str, Any]) -> pd.DataFrame:
        rows = [{"prompt": prompt} for prompt in table["prompt"]]
        found = scorer(rows, list(table["response"])) if rows else []
        return pd.DataFrame({"reward": np.array(found, dtype=np.float32)}, index=table.index)

    return rewards


def policy(result: Path) -> Predict:
    """Returns a policy's responses to prompts; params are those of the signature."""
    folder = result / "model"
    encoder = load_encoder(upstream("data", None, folder), folder)
    trained = load_policy(folder, encoder)
    trained.model.eval()

    def responses(table: pd.DataFrame, params: Mapping[str, Any]) -> pd.DataFrame:
        sampling = Sampling(**{name: params[name] for name in ("max_new_tokens", "temperature", "top_p")})
        rows = [{"prompt": prompt, "opening": params["opening"]} for prompt in table["prompt"]]
        texts = [text for text, _ in answer(trained, encoder, rows, sampling, params["seed"], BATCH)]
        return pd.DataFrame({"response": texts}, index=table.index)

    return responses


LOADERS: Mapping[str, Callable[[Path], Predict]] = {"reward_model": reward_model, "policy": policy}
#: Results, by their names in `MARKS`, that loading reads beside the model's.
READ = {"reward_model": ("data", "sft", "segmenter"), "policy": ("data",)}


class ResultModel(PythonModel):
    """A reward model or policy that is loaded from the clone that has its result."""

    def load_context(self, context: Any) -> None:
        """Loads the result that the model's pointer names, from the clone stated, else the working directory.

        Raises:
            DataError: not a clone with DVC, or one that lacks the result or what it read, or has another one there.
            RecipeError: a result without weights.
        """
        project, pointer = (
            Path(context.model_config["project"]).resolve(),
            read_json(Path(context.artifacts["pointer"])),
        )
        if not (project / ".dvc").is_dir():
            remedy = "Name the clone that has the results: load_model(..., model_config={'project': 'my/clone'})"
            raise DataError("not a clone with DVC", file=str(project), remedy=remedy)
        marks = [MARKS[name] for name in READ[pointer["kind"]]]
        read = {p: value for p, value in pointer["inputs"].items() if any(mark(project / p) for mark in marks)}
        for path, wanted in {pointer["result"]: pointer["digest"], **read}.items():
            folder, target = project / path, pointer["stage"] if path == pointer["result"] else path
            if not folder.is_dir():
                raise DataError("the project lacks it", file=str(folder), remedy=f"In {project}: dvc pull {target}")
            if (found := digest(folder)) != wanted:
                raise DataError(
                    f"its digest is {found[:12]}, the model's {wanted[:12]}: the project has another result there",
                    file=str(folder),
                    remedy=f"Restore it (dvc checkout {target}) at a commit whose dvc.lock has it, or load the model "
                    "of the present result (rewardsmith sync)",
                )
        with chdir(project):
            self._predict = LOADERS[pointer["kind"]](Path(pointer["result"]))

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Returns a row for each row of the table."""
        return self._predict(model_input, params or {})
