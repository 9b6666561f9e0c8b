"""One run in several processes: ranks, shares of a batch, sums over ranks. In one process everything is the identity.

Every rank holds the same rollout batches, data positions, statistics and random generators. It passes only its share
of the rows, every world-size-th one, through the models; what comes out is gathered row by row, and gradients and
losses are summed. Advantages, whitening, running statistics and KL are therefore those of the whole batch on every
rank, and what divides a loss is the count of real tokens of the whole batch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rlhf_core.errors import RecipeError
from rlhf_core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Rows = TypeVar("Rows", "Tensor", Sequence[int])

#: Longest wait of a rank for another rank that evaluates, judges or writes.
COLLECTIVE_TIMEOUT = timedelta(hours=12)
#: Most elements of the gradients that are summed in one message.
BUCKET_ELEMENTS = 2**24


def world_size() -> int:
    """Returns the number of processes of this run."""
    dist = _joined()
    return dist.get_world_size() if dist is not None else 1


def rank() -> int:
    """Returns this process's number, from 0; rank 0 writes."""
    dist = _joined()
    return dist.get_rank() if dist is not None else 0


def _joined() -> Any:
    """Returns torch.distributed where a process group is, else None; without importing torch for the question."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def join(seconds: float = 300.0) -> None:
    """Joins the processes that a launcher such as torchrun started; without a launcher, stays alone.

    Accelerate makes the process group and chooses this process's GPU. The rendezvous comes before, since its patience
    (`seconds`) is another than that of the group's collectives.

    Raises:
        RecipeError: a launcher announced several processes but this one has no rank, or not all of them came.
    """
    if _joined() is not None:
        return
    try:
        announced, given = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    except ValueError as error:
        raise RecipeError(f"WORLD_SIZE and RANK must be whole numbers ({error}); start with torchrun") from None
    if not 0 <= given < announced:
        raise RecipeError(f"RANK is {given} and WORLD_SIZE {announced}; ranks are 0 to {announced - 1}. Use torchrun")
    if "RANK" not in os.environ:
        if announced > 1 or "MASTER_ADDR" in os.environ:
            raise RecipeError(
                "a launcher announced several processes (WORLD_SIZE or MASTER_ADDR is set) but this one has no RANK, "
                "so it is alone: `accelerate launch --cpu --num_processes N` starts one. Start with "
                "`torchrun --nproc_per_node N -m tasks.<stage> ...`"
            )
        return
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    try:
        store, number, world = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise RecipeError(
            f"WORLD_SIZE is {announced}, but after {seconds:g} s not all processes had started "
            f"({str(error).splitlines()[0]}). Start all of them with torchrun, on every node"
        ) from None
    from accelerate import PartialState

    cuda = torch.cuda.is_available()
    os.environ.setdefault("LOCAL_RANK", "0")  # without it, accelerate takes this process for one that is alone
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # else accelerate chooses
    PartialState(
        cpu=not cuda, backend="cpu:gloo,cuda:nccl" if cuda else "gloo", store=store, rank=number, world_size=world,
        timeout=COLLECTIVE_TIMEOUT,
    )  # fmt: skip
    if number:
        torch.manual_seed(torch.initial_seed() + number)  # dropout differs between ranks


def leave() -> None:
    """Ends a process that has joined others, with exit status 0; alone, does nothing.

    Python's own shutdown is left out: a thread of gloo that still releases a tensor then is ended by the interpreter,
    which aborts the process after everything has been written.
    """
    dist = _joined()
    if dist is None:
        return
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def own(rows: Rows) -> Rows:
    """Returns this rank's rows."""
    return rows[rank() :: world_size()]


def merged(values: Tensor) -> Tensor:
    """Returns the whole of values [rows, ...] of which every rank has its own rows, and 0 in the others."""
    if world_size() == 1:
        return values
    whole = values.to(torch.uint8) if values.dtype == torch.bool else values.contiguous()
    torch.distributed.all_reduce(whole)
    return whole.to(values.dtype)


def spread(values: Tensor, rows: int) -> Tensor:
    """Returns [rows, ...] on every rank, from what each rank has for its own rows."""
    if world_size() == 1:
        return values
    whole = values.new_zeros((rows, *values.shape[1:]))
    whole[rank() :: world_size()] = values
    return merged(whole)


def summed(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors of one shape by name, summed over ranks."""
    if world_size() == 1 or not sums:
        return dict(sums)
    together = torch.stack([value.double() for value in sums.values()])
    torch.distributed.all_reduce(together)
    return {name: value.float() for name, value in zip(sums, together, strict=True)}


def summed_numbers(sums: Mapping[str, float]) -> dict[str, float]:
    """Returns numbers by name, summed over ranks in float64."""
    if world_size() == 1:
        return dict(sums)
    together = torch.tensor(list(sums.values()), dtype=torch.float64)
    torch.distributed.all_reduce(together)
    return dict(zip(sums, together.tolist(), strict=True))


def largest(number: int) -> int:
    """Returns the largest of the ranks' numbers."""
    return max(gathered(number))


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Sums gradients over ranks, in place. Losses are divided by counts of the whole batch, so there is no mean."""
    if world_size() == 1:
        return
    bucket: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if bucket and (
            bucket[0].dtype != parameter.grad.dtype
            or sum(grad.numel() for grad in bucket) + parameter.grad.numel() > BUCKET_ELEMENTS
        ):
            _sum_bucket(bucket)
            bucket = []
        bucket.append(parameter.grad)
    if bucket:
        _sum_bucket(bucket)


def _sum_bucket(gradients: list[Tensor]) -> None:
    together = torch.cat([gradient.flatten() for gradient in gradients])
    torch.distributed.all_reduce(together)
    for gradient, total in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))


def on_main(function: Callable[[], T]) -> T:
    """Returns the result of a function that rank 0 alone calls: judges, programs, user code."""
    if world_size() == 1:
        return function()
    box: list[Any] = [function() if rank() == 0 else None]
    torch.distributed.broadcast_object_list(box, src=0)
    return cast(T, box[0])


def gathered(value: T) -> list[T]:
    """Returns every rank's value, in order of rank."""
    if world_size() == 1:
        return [value]
    everyone: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(everyone, value)
    return everyone


def barrier() -> None:
    """Waits for every rank."""
    gathered(None)
