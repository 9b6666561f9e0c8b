"""The class of commands that need the repository, or a project of `rewardsmith init`, as their working folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from tasks.graph.names import refuse_other_folder


class InProject(TyperCommand):
    """A command that needs the repository or a project as its working folder."""

    def invoke(self, ctx: Any) -> Any:
        refuse_other_folder(Path.cwd())
        return super().invoke(ctx)
