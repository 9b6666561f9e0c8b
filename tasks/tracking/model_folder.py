"""The MLflow model of a result: the folder `model/` of its run, which `mlflow.pyfunc.load_model` reads.

It has MLflow's description with a signature (`MLmodel`), a pointer to the result (`pointer.json`) and the code that
loads it (`model_code.py`, MLflow's "models from code"). Nothing is pickled, and weights stay in DVC. The folder is
written with MLflow's own classes: `mlflow.pyfunc.log_model` would load each model to infer its requirements.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.supervised.recipes import RECIPES, opening_of
from rlhf_core.typed import init_fields
from tasks.running.artifacts import write_json
from tasks.tracking.outcomes import RowOutcome

#: Folder of a run's artifacts.
FOLDER = "model"
#: MLflow runs this file of the folder to load the model.
CODE_FILE, CODE = (
    "model_code.py",
    """\
from mlflow.models import set_model

from tasks.tracking.loaded_model import ResultModel

set_model(ResultModel())
""",
)
#: Columns that a model of each kind reads and gives, with MLflow's type of the latter.
COLUMNS = {
    "reward_model": (("prompt", "response"), ("reward", "float")),
    "policy": (("prompt",), ("response", "string")),
}
#: Longest response of a policy whose evaluation states none.
MAX_NEW_TOKENS = 256


def pointer(outcome: RowOutcome, root: Path) -> dict[str, Any]:
    """Returns the place of a result in DVC, and its digest."""
    return {
        "result": (outcome.stage.out / "result").relative_to(root).as_posix(),
        "digest": outcome.digest,
        "stage": outcome.stage.address,
        "commit": outcome.record.get("commit"),
        "fetch": f"dvc pull {outcome.stage.address}",
    }


def opening(params: Mapping[str, str]) -> str:
    """Returns the text that a policy's answers begin with, by the parameters of its run; '' for most policies."""
    kind = params.get("optimiser.kind", "")
    if kind not in RECIPES:
        return ""
    texts = [name for name, field in init_fields(RECIPES[kind]).items() if field.type == "str"]
    return opening_of(kind, {name: params[f"optimiser.{name}"] for name in texts if f"optimiser.{name}" in params})


def signature(kind: str, params: Mapping[str, str]) -> Any:
    """Returns MLflow's signature of a reward model or policy.

    Args:
        kind: the stage's module.
        params: of the run.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    read, (given, value) = COLUMNS[kind]
    asked = [
        ParamSpec("max_new_tokens", "long", int(params.get("evaluation.max_new_tokens", MAX_NEW_TOKENS))),
        ParamSpec("temperature", "double", 0.0),
        ParamSpec("top_p", "double", 1.0),
        ParamSpec("seed", "long", 0),
        ParamSpec("opening", "string", opening(params)),
    ]
    schema: Any = ParamSchema(asked) if kind == "policy" else None
    return ModelSignature(Schema([ColSpec("string", name) for name in read]), Schema([ColSpec(value, given)]), schema)


def write_model(folder: Path, outcome: RowOutcome, root: Path, run_id: str | None = None) -> Any:
    """Writes the model of a result.

    Args:
        folder: an empty one.
        outcome: the result of a reward model or policy.
        root: the repository.
        run_id: of the run that has the folder.

    Returns:
        MLflow's description of the model.
    """
    from mlflow.models import Model
    from mlflow.pyfunc import add_to_model
    from mlflow.pyfunc.loaders import code_model

    model = Model(FOLDER, run_id, signature=signature(outcome.stage.kind, outcome.stage.params))
    add_to_model(
        model,
        loader_module=code_model.__name__,
        model_code_path=CODE_FILE,
        model_config={"project": ""},
        artifacts={"pointer": {"path": "pointer.json", "uri": "pointer.json"}},
        streamable=False,
    )
    model.save(folder / "MLmodel")
    (folder / CODE_FILE).write_text(CODE, encoding="utf-8")
    inputs = dict(outcome.record.get("inputs", {}))
    write_json(folder / "pointer.json", pointer(outcome, root) | {"kind": outcome.stage.kind, "inputs": inputs})
    return model


def log_model(client: Any, run_id: str, outcome: RowOutcome, root: Path) -> None:
    """Logs the model of a result among its run's artifacts, where MLflow's pages show it as a model."""
    from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_MODELS

    with tempfile.TemporaryDirectory() as place:
        model = write_model(Path(place), outcome, root, run_id)
        client.log_artifacts(run_id, place, FOLDER)
    client.set_tag(run_id, MLFLOW_LOGGED_MODELS, json.dumps([model.get_tags_dict()]))
