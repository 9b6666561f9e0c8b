"""Environment variables, read as numbers and addresses; those that would mislead a process are refused or unset."""

from __future__ import annotations

import os
import re
import sys
from urllib.parse import urlsplit

from rlhf_core.errors import RecipeError, RewardsmithError
from rlhf_core.services import client

#: Most threads, processes or ranks: with far more the libraries crash.
MOST = 1024
#: Variables by which a git hook names its own repository. Git and DVC would read them before the working directory.
OF_ANOTHER_REPOSITORY = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE",
    "GIT_PREFIX",
)  # fmt: skip
#: Variables that change the last bits of sums and products, and more at low precision.
OF_ARITHMETIC = (
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
#: Variables that name a file or folder of certificates; libraries differ in which they read.
OF_CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
#: Seconds that a server may take to answer.
PATIENCE = 20


def whole_number(variable: str, default: str, least: int = 1) -> int:
    """Returns a variable's number.

    Raises:
        RecipeError: it is not a whole number from `least` to MOST.
    """
    text = os.environ.get(variable, default)
    if not (re.fullmatch("[0-9]{1,9}", text) and least <= int(text) <= MOST):
        bound = f"at least {least}" if least else "0 or more"
        raise RecipeError(f"{variable} is '{text[:40]}'; it must be a whole number, {bound} and at most {MOST}")
    return int(text)


def seconds(variable: str, default: float, remark: str = "") -> float:
    """Returns a variable's seconds.

    Raises:
        RecipeError: not a number of at least 0.
    """
    text = os.environ.get(variable, str(default))
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise RecipeError(f"{variable} is '{text}'; it must be a number of seconds{remark}")
    return found


def refuse_bad_address(variable: str) -> None:
    """Refuses a server's address that cannot be read; the message leaves out the address, which may have a password.

    Raises:
        RewardsmithError: names the variable.
    """
    address = os.environ.get(variable, "")
    try:
        parts = urlsplit(address)
        usable = parts.scheme not in ("http", "https") or bool(parts.hostname and parts.port != 0)
    except ValueError:
        usable = False
    if not usable:
        raise RewardsmithError(f"{variable} is not a valid address; it must be as http://host:port, or not set")


def refuse_unusable_prefect() -> None:
    """Refuses a run whose Prefect server does not answer.

    Raises:
        RewardsmithError: names the variable, or those of proxies and certificates.
    """
    import httpx

    address = os.environ.get("PREFECT_API_URL", "")
    if not address:
        return
    refuse_bad_address("PREFECT_API_URL")
    client(1).close()
    shown = re.sub(r"//[^/]*@", "//", address)
    try:  # without user and password: any answer will do, also over a certificate that only Prefect is told to trust
        with httpx.stream("GET", f"{shown.rstrip('/')}/health", timeout=PATIENCE, verify=False):
            pass
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RewardsmithError(
            f"no Prefect server answers at PREFECT_API_URL, {shown} ({error}); start it, correct the address "
            "(http://host:4200/api), or unset the variable for a temporary server"
        ) from None


def arithmetic() -> list[str]:
    """Returns the variables set here that change arithmetic, as in `MKL_CBWR=COMPATIBLE`."""
    return [f"{name}={os.environ[name]}" for name in OF_ARITHMETIC if os.environ.get(name)]


def unset_misleading_variables() -> None:
    """Unsets variables of another repository: Git and DVC take it from the working directory alone."""
    for name in OF_ANOTHER_REPOSITORY:
        os.environ.pop(name, None)


def refuse_bad_environment() -> None:
    """Refuses what no process of the project can run with.

    Raises:
        RecipeError: names the variable and what would be right.
    """
    if sys.flags.optimize:
        raise RecipeError(
            "Python runs with -O or PYTHONOPTIMIZE, which removes checks and texts that libraries, rewards of your own "
            "and commands need; unset PYTHONOPTIMIZE"
        )
    for name in OF_CERTIFICATES:
        if (path := os.environ.get(name)) and not os.path.exists(path):
            raise RecipeError(
                f"{name} is {path}, which does not exist; correct it, or unset it for the usual certificates"
            )
