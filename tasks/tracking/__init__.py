"""The view of results in MLflow."""
