"""A reward of the user's own: any Python callable, named as `package.module:name`.

    def brevity(batch: RolloutBatch) -> torch.Tensor:        # one value per response
        return -batch.responses.lengths.float() / 50

Naming it in a recipe is asking for that module to be imported: recipes are code as far as trust goes.
"""

from __future__ import annotations

import copy
import inspect
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlhf_core import distributed
from rlhf_core.errors import FunctionNumericsError, RecipeError, RewardsmithError, UserCodeError
from rlhf_core.lazy import torch
from rlhf_core.rollout import Responses, RolloutBatch
from rlhf_core.signals import Sequence, Tokens
from rlhf_core.user_code import import_callable

if TYPE_CHECKING:
    from torch import Tensor

#: Types of signal that a callable may give, by the word that a recipe uses.
GIVES: Mapping[str, type[Sequence] | type[Tokens]] = {"sequence": Sequence, "tokens": Tokens}

#: Said of a function that looks for texts elsewhere.
TEXTS = "batch.texts has the responses, batch.prompts the prompts, batch.records the data rows"


@dataclass(frozen=True)
class FunctionScorer:
    """Scores by a callable.

    Args:
        function: rollouts to [batch] (`gives` Sequence) or [batch, response_len] (`gives` Tokens).
        gives: the type of its signal.
        name: `package.module:name`, in messages; the callable's own name unless given.
    """

    function: Callable[[RolloutBatch], Tensor]
    gives: type[Sequence] | type[Tokens]
    name: str = ""

    def score(self, batch: RolloutBatch) -> Sequence | Tokens:
        """Returns the callable's values as a float32 signal; see `values_of` and `checked_signal`."""
        name = self.name or str(getattr(self.function, "__name__", self.function))
        found = distributed.on_main(lambda: values_of(self.function, batch, name))
        return checked_signal(found.to(batch.prompt_ids.device), batch, self.gives, name)


def values_of(function: Callable[[RolloutBatch], Tensor], batch: RolloutBatch, name: str) -> Tensor:
    """Returns what a callable gives for a copy of a batch, without gradients, as float32 on the CPU.

    The copy has the reference rewards of the batch's own prompts.

    Raises:
        UserCodeError: it raises an error; the message has its file and line.
        RecipeError: it returns something else than numbers, is async or a class, ends the process, or changes
            what other code of the process computes with.
    """
    _refuse_uncalled(function, name)
    known = {row["id"]: batch.references[row["id"]] for row in batch.records if row.get("id") in batch.references}
    given, before = copy.deepcopy(replace(batch, references=known)), _process_state()
    with torch.no_grad():
        try:
            returned = function(given)
        except RewardsmithError:
            raise
        except Exception as error:
            raise _failure(function, name, error) from error
        except SystemExit as error:
            raise RecipeError(f"reward function {name} ends the process (exit {error.code}); return values") from None
        if changed := [what for what, now in _process_state().items() if now != before[what]]:
            raise RecipeError(
                f"reward function {name} changes {', '.join(changed)}, which the rest of the run depends on; put it "
                "back before returning, or leave it out"
            )
        try:
            found = torch.as_tensor(returned)
            if found.is_complex() or found.is_nested or found.layout != torch.strided:
                raise TypeError("complex, sparse or nested")
            return found.detach().float().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise RecipeError(
                f"reward function {name} returned {type(returned).__name__} {str(returned)[:40]!r}; it must be "
                f"a tensor of numbers ({error})"
            ) from None


def _process_state() -> dict[str, Any]:
    """Returns what a function can change for the rest of the process, by what it is called in messages."""
    return {
        "the working directory": os.getcwd(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's seed": torch.initial_seed(),
    }


def _failure(function: Any, name: str, error: Exception) -> UserCodeError:
    """Returns the error of a callable that raised one, with the file and line of the callable's own code."""
    if isinstance(error, TypeError) and not _takes_a_batch(function):
        return UserCodeError(
            f"reward function {name} takes {inspect.signature(function)}; it gets one argument, the batch of rollouts: "
            f"{TEXTS}"
        )
    frames = traceback.extract_tb(error.__traceback__)
    own = next((frame for frame in reversed(frames) if frame.filename == _file(function)), frames[-1])
    place = f"line {own.lineno} of {own.filename}: {own.line}"
    if isinstance(error, AttributeError) and isinstance(error.obj, RolloutBatch | Responses):
        place += f"; {TEXTS}"
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return UserCodeError(f"reward function {name} failed: {said} ({place})")


def _takes_a_batch(function: Any) -> bool:
    """Returns whether a callable takes one argument, not named as those of another library's rewards; or may."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return not {"completions", "completion_ids", "prompts"} & signature.parameters.keys()


def _file(function: Any) -> str:
    """Returns the file of a callable's code, below its decorators; empty for what has none of its own."""
    of = function if hasattr(function, "__code__") else type(function).__call__
    return str(getattr(getattr(inspect.unwrap(of), "__code__", None), "co_filename", ""))


def _refuse_uncalled(function: Any, name: str) -> None:
    """Refuses an async function and a class, whose calls give no values yet."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise RecipeError(f"reward function {name} is async; define it by def, and wait for its answers inside")
    if inspect.isclass(function):
        raise RecipeError(f"reward function {name} is a class; name an instance of it, as in reward = {name}()")


def checked_signal(
    values: Tensor, batch: RolloutBatch, gives: type[Sequence] | type[Tokens], name: str
) -> Sequence | Tokens:
    """Returns a callable's values as a signal; padding is paid nothing, whatever the callable returns there.

    Raises:
        RecipeError: values of another shape than declared.
        FunctionNumericsError: a value that is not finite.
    """
    mask = batch.responses.mask
    expected = (len(batch),) if gives is Sequence else tuple(mask.shape)
    if tuple(values.shape) != expected:
        each = "response" if gives is Sequence else "token"
        raise RecipeError(
            f"reward function {name} returned shape {tuple(values.shape)}; gives: {gives.__name__.lower()} wants "
            f"{expected}, a value for each {each}"
        )
    counted = values[:, None] if gives is Sequence else torch.where(mask, values, 0.0)
    bad = (~torch.isfinite(counted)).any(dim=1)
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        raise FunctionNumericsError(f"reward function {name}: the reward of response {row} of the batch is not finite")
    return Sequence(values) if gives is Sequence else Tokens(torch.where(mask, values, 0.0))


def build_function_scorer(name: str, gives: str) -> FunctionScorer:
    """Returns the scorer of a named callable."""
    return FunctionScorer(import_callable(name, "reward function"), GIVES[gives], name)
