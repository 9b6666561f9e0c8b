"""MLflow's code of every model: the folder `model/` of a run has a copy of this file, which MLflow runs to load it."""

from mlflow.models import set_model

from tasks.tracking.loaded_model import ResultModel

set_model(ResultModel())
