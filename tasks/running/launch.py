"""Starting the stages that train in several processes: threads, ranks, DeepSpeed, and what goes wrong there.

REWARDSMITH_PROCESSES  processes on this machine; the stage starts them itself, under DVC and Prefect too, and they
                       share its threads (REWARDSMITH_THREADS); by default one for each of the stage's GPUs
REWARDSMITH_DEEPSPEED  a DeepSpeed configuration (infra/deepspeed/*.json); without it every rank has the whole model
REWARDSMITH_JOIN_SECONDS  how long a process waits for the others when it starts (300)
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rlhf_core.errors import RecipeError
from tasks.params.stages import read_deepspeed
from tasks.running.machine import described_device
from tasks.running.variables import seconds, whole_number

PROCESSES_VARIABLE = "REWARDSMITH_PROCESSES"
THREADS_VARIABLE = "REWARDSMITH_THREADS"
DEEPSPEED_VARIABLE = "REWARDSMITH_DEEPSPEED"
#: Variable in which `accelerate launch` names its DeepSpeed configuration.
ACCELERATE_VARIABLE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
JOIN_VARIABLE = "REWARDSMITH_JOIN_SECONDS"
#: prctl's number for the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG = 1


def launched_processes() -> int:
    """Returns how many processes a stage starts by torchrun: REWARDSMITH_PROCESSES, else one for each of its GPUs that
    torch sees.

    One is started by itself only under DeepSpeed, which needs a process group, where the variable or a GPU asks for it;
    0 for none, as in a process that a launcher started.
    """
    if "RANK" in os.environ:
        return 0
    named = _named_gpus()
    if named > 1:
        import torch

        seen = torch.cuda.device_count()
    else:
        seen = named
    processes = whole_number(PROCESSES_VARIABLE, str(seen or 1))
    asked = PROCESSES_VARIABLE in os.environ or named > 0
    return processes if processes > 1 or (asked and deepspeed_file()) else 0


def _named_gpus() -> int:
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return 0 if devices in ("", "-1") else len(devices.split(","))


def launch(processes: int) -> int:
    """Runs this process's command line in several processes by torchrun; returns the first failure's exit code.

    Raises:
        RecipeError: more processes than the stage's GPUs.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    os.environ |= environment_of_each(processes)
    if sys.flags.safe_path:  # `python -P -m`: a folder `tasks` in the working directory is not this package
        os.environ["PYTHONSAFEPATH"] = "1"
    module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    try:
        torchrun(["--standalone", "--nproc_per_node", str(processes), "-m", module, *sys.argv[1:]])
    except ChildFailedError as error:
        return error.get_first_failure()[1].exitcode or 1
    return 0


def environment_of_each(processes: int) -> dict[str, str]:
    """Threads of each of a stage's processes: an equal part of the stage's, at least one.

    Raises:
        RecipeError: more processes than GPUs were given to the stage (CUDA_VISIBLE_DEVICES; none is the CPU).
    """
    gpus = _named_gpus()
    if gpus and processes > gpus:
        raise RecipeError(
            f"{PROCESSES_VARIABLE} is {processes}, but the stage sees {gpus} GPU(s) "
            f"(CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}); "
            "each process needs its own GPU. Declare more `gpus` for it under `resources` in "
            "params/scales/<scale>/stages.yaml, or start fewer processes"
        )
    threads = str(max(1, whole_number(THREADS_VARIABLE, "1") // processes))
    return {THREADS_VARIABLE: threads, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


def prepare_process(*, several: bool = False) -> None:
    """Prepares this process for a stage that loads models: threads (REWARDSMITH_THREADS, else 1, so that results agree
    whoever starts a stage) and device; one of several joins the launcher's others, its models sharded as asked.

    Raises:
        RecipeError: several processes were started for a stage that runs in one, processes are missing, or an invalid
            number of threads or DeepSpeed configuration.
    """
    import torch

    from rlhf_core import distributed
    from rlhf_core.models.device import grant
    from rlhf_core.stepper import use_deepspeed

    if not several and whole_number("WORLD_SIZE", "1") > 1:
        raise RecipeError("this stage runs in one process; sft, reward_model, aspect_model and policy run in several")
    if several and "LOCAL_RANK" in os.environ:
        end_with_launcher()
    torch.set_num_threads(whole_number(THREADS_VARIABLE, "1"))
    grant(described_device())
    if not several:
        return
    named = deepspeed_file()
    config = read_deepspeed(Path(named)) if named else None
    if config is not None and "RANK" not in os.environ:
        raise RecipeError(
            f"{DEEPSPEED_VARIABLE} is set, but this process was not started by torchrun; set {PROCESSES_VARIABLE} too, "
            "or start with `torchrun --nproc_per_node N -m tasks.<stage> ...`"
        )
    distributed.join(seconds(JOIN_VARIABLE, 300))
    use_deepspeed(config)


def end_with_launcher() -> None:
    """Ends this process, on Linux, when its launcher is killed.

    torchrun starts ranks in sessions of their own: without this they would continue to write beside a restarted run.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def deepspeed_file() -> str | None:
    """Returns the DeepSpeed configuration that the environment names, None for none."""
    return os.environ.get(DEEPSPEED_VARIABLE) or os.environ.get(ACCELERATE_VARIABLE)
