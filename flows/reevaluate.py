"""placeholder"""
from prefect import flow


@flow(name="reevaluate")
def reevaluate(root: str = ".") -> str:
    """Placeholder."""
    return "none"
