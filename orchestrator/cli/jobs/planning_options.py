"""Options of the commands that plan a job."""

from __future__ import annotations

from typing import Annotated

import typer

ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME|FILE",
        help="Check the job against this cluster profile (name or file), instead of launch.cluster.",
    ),
]
GpuName = Annotated[
    str | None, typer.Option("--gpu", metavar="NAME", help="Plan for this GPU, instead of launch.gpu: H100, H200, …")
]
Strict = Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")]
