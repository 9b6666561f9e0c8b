"""The platform on one machine: Prefect server and worker, MLflow server, and a page that links them."""
