"""The frame of all stages: command line, settings, threads, output, errors and exit codes.

A stage is a typed function in a module of its own:

    def draw_pool(scale: Annotated[PoolSpec, PageEntry("pool settings (YAML)")], data: Path, result: Path): ...

    main = stage(draw_pool)

The frame reads `scale` from the entry of a page that `--scale` names, opens the stage's output at `--out` with the
digests of all inputs, and calls the function, which writes its files into the folder `result`.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from rlhf_core.errors import (
    PATH_ERRORS,
    FunctionNumericsError,
    NumericsError,
    RecipeError,
    RewardsmithError,
    UserCodeError,
    path_error,
)
from rlhf_core.typed import typed
from tasks import GC_THRESHOLD
from tasks.graph.results import stopped
from tasks.params.pages import Address, read_settings
from tasks.params.scales import DEFAULT_SCALE
from tasks.running.artifacts import Stopped, check_version, stage_output
from tasks.running.launch import launch, launched_processes, prepare_process
from tasks.running.variables import (
    arithmetic,
    refuse_bad_environment,
    unset_misleading_variables,
    whole_number,
)

#: Exit code for an error that the caller has to fix; a scheduler does not retry it.
USER_ERROR = 2
#: Exit code for an error that the user's own function raised; a scheduler retries it if it may pass, as a lost network.
FUNCTION_FAILED = 1
Spec = TypeVar("Spec")


class PageEntry(str):
    """The help text of a parameter that is read from an entry of a settings page, as the type that is annotated."""


#: Parameters that the frame gives: the folder of the result, and the checkpoints of a stage that can be continued.
OUTPUT = ("result", "checkpoints")


def _module(function: Callable[..., None]) -> str:
    """Returns the module of a stage's function, also where it is the one that Python was started with."""
    main = sys.modules["__main__"].__spec__ if function.__module__ == "__main__" else None
    return main.name if main else function.__module__


def _stage(function: Callable[..., None]) -> tuple[str, int]:
    """Returns a stage's name and the version of its code."""
    return _module(function).rpartition(".")[2], sys.modules[function.__module__].VERSION


def _parameters(owner: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields name, annotation and default of each parameter of a function, or of each field of a dataclass."""
    hints = get_type_hints(owner, include_extras=True)
    for name, parameter in inspect.signature(owner).parameters.items():
        yield name, hints[name], parameter.default


def _arguments(owner: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields the arguments of a function's command line: its parameters without those that the frame gives; in place
    of one that is a dataclass, the parameters of that."""
    for name, hint, default in _parameters(owner):
        if is_dataclass(hint):
            yield from _arguments(hint)  # type: ignore[arg-type]
        elif name not in OUTPUT:
            yield name, hint, default


def _entries(owner: Callable[..., Any]) -> dict[str, Any]:
    """Returns the types of a function's parameters that are read from entries of settings pages."""
    hints = {name: get_args(hint) for name, hint, _ in _parameters(owner) if get_origin(hint) is Annotated}
    return {name: parts[0] for name, parts in hints.items() if isinstance(parts[1], PageEntry)}


def _filled(owner: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a function from the arguments of its command line, with its dataclasses built."""
    return {
        name: hint(**_filled(hint, given)) if is_dataclass(hint) else given[name]  # type: ignore[arg-type, operator]
        for name, hint, _ in _parameters(owner)
    }


def argument_parser(function: Callable[..., None]) -> argparse.ArgumentParser:
    """Returns the command line of a stage's function: one argument per parameter, required unless it has a default or
    may be None; the help text of each is in its `Annotated`.

    `spec_path` is `--spec`: the address of an entry of a settings page. Every stage has `--out` and `--stage-version`.
    A parameter that is a dataclass stands for its fields, so that arguments that belong together are declared,
    documented and checked together (`PolicyInputs`).
    """
    parser = argparse.ArgumentParser(prog=f"python -m {_module(function)}", description=function.__doc__)
    arguments = {name: (hint, default) for name, hint, default in _arguments(function)}
    for name, (hint, default) in {**arguments, "out": (Path, inspect.Parameter.empty)}.items():
        text = HELP.get(name)
        if get_origin(hint) is Annotated:
            hint, text = get_args(hint)[:2]
        if isinstance(text, PageEntry):
            hint = Address
        may_be_none = type(None) in get_args(hint)
        if may_be_none:
            hint = next(part for part in get_args(hint) if part is not type(None))
        several = get_origin(hint) is tuple
        flag = name.removesuffix("_path").replace("_", "-")
        parser.add_argument(
            f"--{flag}",
            dest=name,
            metavar=flag.upper(),
            type=get_args(hint)[0] if several else hint,
            nargs="+" if several else None,
            required=not may_be_none and default is inspect.Parameter.empty,
            default=None if default is inspect.Parameter.empty else default,
            help=text,
        )
    parser.add_argument("--stage-version", type=int, help="expected VERSION of the stage's code")
    return parser


#: Help texts of parameters that most stages have.
HELP = {
    "data": "result of `prepare`",
    "tokenizer": "result of `tokenizer`",
    "sft": "result of `sft`",
    "entropies": "result of `entropies`",
    "sentences": "result of `segmenter`: a SaT model with sentence ends",
    "reward_model": "result of `reward_model`",
    "normaliser": "result of `normaliser`",
    "evaluation_path": "evaluation spec (YAML)",
    "seed": "of everything random",
    "out": "output directory: result/ and record/ go there",
}


def command_line(
    function: Callable[..., None], *, models: bool = True, several_processes: bool = False
) -> Callable[[list[str] | None], None]:
    """Returns the stage's `main`: parses arguments (the process's own for None) and calls the function with them.

    A stage that stopped, or reads from one that did, ends well: it leaves a result that says why (`Stopped`). The
    testbed sees no GPU, whoever starts it, so that its results agree with the reference. A recipe error that names
    no file gets the stage's settings files.

    Args:
        function: the stage, or another function with arguments of its own.
        models: whether it loads models, for which its process is prepared.
        several_processes: whether it runs in REWARDSMITH_PROCESSES processes where that is set.
    """
    entries = _entries(function)

    def main(arguments: list[str] | None = None) -> None:
        from tasks.graph.check import check_declared

        given = vars(argument_parser(function).parse_args(arguments))
        requested = given.pop("stage_version")
        hide_gpus(given["out"])
        settings = [str(value) for value in given.values() if isinstance(value, Address)]
        try:
            named = {name.removesuffix("_path"): value for name, value in given.items() if value is not None}
            check_declared(Path(), given["out"], {name: value for name, value in named.items() if name != "out"})
            if requested is not None:
                check_version(*_stage(function), requested)
            _stop_as_well(function, given)
            if models:
                prepare_process(several=several_processes)
            values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
            values |= {name: read_spec(kind, given[name]) for name, kind in entries.items()}
            with _output(function, given) as parts:
                function(**_filled(function, values | parts))
        except Stopped as found:
            print(f"stopped: {found}", file=sys.stderr)
        except UserCodeError:  # whose own file and line it names, and which `run_main` tells from a wrong setting
            raise
        except RecipeError as error:
            if any(path in str(error) for path in settings):
                raise
            raise RecipeError(f"{error} (settings: {', '.join(settings)})" if settings else str(error)) from None

    return main


@contextmanager
def _output(function: Callable[..., None], given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the parts of its output that a stage's function takes; its inputs are the files among its arguments."""
    wanted = {name for name, *_ in _parameters(function)} & {*OUTPUT}
    if not wanted:
        yield {}
        return
    (name, version), out = _stage(function), given["out"]
    inputs = _files(given)
    if "checkpoints" in wanted:
        from tasks.running.checkpoints import resumable_output

        with resumable_output(out, stage=name, version=version, inputs=inputs, seed=given["seed"]) as (result, kept):
            yield {"result": result, "checkpoints": kept}
    else:
        with stage_output(out, stage=name, version=version, inputs=inputs) as result:
            yield {"result": result}


def read_spec(kind: type[Spec], address: Address) -> Spec:
    """Returns an entry of a page as settings of a kind.

    Raises:
        RecipeError: with the entry's address, an unknown or missing field, or a wrong value.
    """
    return typed(kind, read_settings(address), str(address))


def hide_gpus(out: Path) -> None:
    """Hides GPUs from a stage of the testbed."""
    if out.parts[:2] == ("results", DEFAULT_SCALE):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _files(given: Mapping[str, Any]) -> list[Path | Address]:
    """Returns the inputs among the arguments of a command line."""
    several = (value if isinstance(value, list) else [value] for name, value in given.items() if name != "out")
    return [value for values in several for value in values if isinstance(value, Path | Address)]


def _stop_as_well(function: Callable[..., None], given: Mapping[str, Any]) -> None:
    """Leaves the result of a stage that reads from stages that stopped.

    Raises:
        Stopped: with their reasons, if there are any.
    """
    found = {path: stopped(path) for path in _files(given) if isinstance(path, Path)}
    above = {path: reason for path, reason in found.items() if reason is not None}
    if not above:
        return
    reason, (name, version) = "; ".join(dict.fromkeys(above.values())), _stage(function)
    if whole_number("RANK", "0", least=0):  # of several processes the first one writes
        raise Stopped(reason)
    with stage_output(given["out"], stage=name, version=version, inputs=list(above)):
        raise Stopped(reason)


@contextmanager
def name_file_in_numeric_errors(data: Path) -> Iterator[None]:
    """Puts the file whose rows are trained on before the message of a numeric error, except a user's function's."""
    try:
        yield
    except FunctionNumericsError:
        raise
    except NumericsError as error:
        raise NumericsError(f"file {data}: {error}") from None


def stage(
    function: Callable[..., None], *, models: bool = True, several_processes: bool = False
) -> Callable[[list[str] | None], None]:
    """Returns the `main` of a stage's module, as `command_line` does; where the module is the program, runs it."""
    main = command_line(function, models=models, several_processes=several_processes)
    if function.__module__ == "__main__":
        run_main(main, several_processes=several_processes)
    return main


def run_main(main: Callable[[list[str] | None], Any], *, several_processes: bool = False) -> None:
    """Runs the main function of a stage or report; an error of the caller's prints one line and exits with USER_ERROR.

    An error raised by a function of the user's own is printed with its traceback and exits with FUNCTION_FAILED: it may
    be transient.
    """
    unset_misleading_variables()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    gc.freeze()  # what was imported stays: later collections, and those at exit, pass it over (1 to 2 s a stage)
    gc.set_threshold(*GC_THRESHOLD)
    try:
        refuse_bad_environment()
        if noted := arithmetic():
            print(f"note: {', '.join(noted)} changes arithmetic; the result's record says so", file=sys.stderr)
        if several_processes:
            if "--out" in sys.argv[:-1]:
                hide_gpus(Path(sys.argv[sys.argv.index("--out") + 1]))
            if processes := launched_processes():
                sys.exit(launch(processes))
        main(None)
        if several_processes:
            from rlhf_core import distributed

            distributed.leave()
    except UserCodeError as error:
        traceback.print_exception(error.__cause__)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(FUNCTION_FAILED)
    except (RewardsmithError, *PATH_ERRORS) as error:
        print(f"error: {path_error(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        sys.exit(USER_ERROR)
