"""`orchestrator calibrate`: what of its datasheet a GPU reaches, measured here or told by runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from orchestrator.cli.common import AsJson, RunsDir, aligned, end_with, print_json
from orchestrator.cli.jobs.calibration import MeasuredRun, measure_machine, measured_run
from orchestrator.cli.outputs import refuse_printed
from orchestrator.errors import JobError, OrchestratorError, UserError
from orchestrator.launch.runs import find_run
from orchestrator.planning.estimates import machine_of
from orchestrator.planning.hardware.devices import CPU, Device, calibrated, shipped, shipped_names
from orchestrator.planning.hardware.profile_text import profile_text
from orchestrator.planning.hardware.profiles import (
    GPU_NAME,
    GpuProfile,
    MeasuredEfficiency,
    known_gpus,
    read_gpu,
    user_folder,
)
from orchestrator.planning.time.fits.fitting import fit
from orchestrator.planning.time.fits.kernel_measurements import KernelEfficiency, efficiency_of, table_of
from orchestrator.planning.time.step import estimate_with
from orchestrator.run_directory.rundir import default_runs_dir, write_atomically


def command(
    gpu_name: Annotated[
        str | None,
        typer.Option("--gpu-name", metavar="NAME", help="Name of the profile; the GPU's own short name by default."),
    ] = None,
    from_runs: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="RUN", help="Correct the profile by the step times of a run; may be repeated."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="GPU", help="The GPU whose datasheet applies, if yours is not recognised."),
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Measure the CPU even if there is a GPU.")] = False,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=0.001,
            max=60.0,
            help="Seconds for each measurement, except matrix products on a GPU.",
        ),
    ] = 0.5,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write, e.g. gpus/NAME.yaml in a project; by default NAME.yaml in your own folder.",
            callback=refuse_printed,
        ),
    ] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure how much of its datasheet this machine's GPU (or CPU) reaches, and write a profile that plan, validate
    and tune use from then on. With --from, nothing is measured: the step times of runs correct the existing profile.

    \b
    Example:
      orchestrator calibrate
      orchestrator calibrate --from llama-1.7b --from llama3-8b
      orchestrator calibrate --gpu-name h200-cluster-a -o gpus/h200-cluster-a.yaml
    """
    gpu_name = _profile_name(gpu_name, output)
    if from_runs and cpu:
        raise UserError(
            "--cpu selects what to measure, but --from measures nothing: leave out one of them",
            code="conflicting_options",
        )
    if from_runs:
        folder = runs_dir or default_runs_dir()
        _from_runs([measured_run(find_run(name, folder)) for name in from_runs], gpu_name, base, output, as_json)
    else:
        _from_measurements(seconds, cpu, gpu_name, base, output, as_json)


def _profile_name(gpu_name: str | None, output: Path | None) -> str | None:
    """The name that is given for the profile, by its file or as such; None for that of the GPU. Raises UserError where
    it cannot be one.
    """
    if output is not None and output.suffix != ".yaml":
        raise UserError(
            f"{output}: the name of a profile file ends in .yaml; -o gpus/{output.name}.yaml would do",
            code="profile_not_yaml",
        )
    if output is not None:
        gpu_name = gpu_name or output.stem
        if gpu_name != output.stem:
            raise UserError(
                f"a profile has the name of its file: {gpu_name} would have to be {output.with_stem(gpu_name)}",
                code="profile_name_differs",
            )
    if gpu_name is not None and GPU_NAME.fullmatch(gpu_name) is None:
        raise UserError(
            f"{gpu_name!r} is not a valid profile name: letters, digits, '.', '_' and '-', at most 80",
            code="malformed_profile_name",
        )
    return gpu_name


def _from_measurements(
    seconds: float, cpu: bool, gpu_name: str | None, base: str | None, output: Path | None, as_json: bool
) -> None:
    if base is not None:  # a slip is told before minutes of measuring
        _datasheet(CPU if cpu else base, base)
    found = measure_machine(seconds, cpu=cpu)
    sheet = _datasheet(found["device"], base)
    name = _name(gpu_name, sheet)
    reached = efficiency_of(found, sheet)
    path = output or _in_force(name)
    earlier = _earlier(path, sheet.name)
    profile = earlier.model_copy(
        update={
            "base": sheet.name,
            "efficiency": _efficiency({**_changed(calibrated(name, sheet, earlier), sheet), **reached}, sheet),
            "memory_bytes": found["memory_bytes"] or earlier.memory_bytes,
            "layers": None if sheet.is_cpu or machine_of(sheet).has_engine else "torch",
            "measured_at": _now(),
            "measured_on": f"{found['count']} x {found['device']}, torch {found['torch']}",
            "measured_with": ["orchestrator calibrate"],
        }
    )
    failure = found.get("links_failure")
    error: OrchestratorError | None = None
    if failure is not None:
        error = JobError(f"the links between the devices were not measured: {failure}", code="links_not_measured")
    written, refusal = _write(path, profile)
    error = error or refusal
    rows = table_of(found, sheet)
    if as_json:
        record = {"path": written, "name": name, "profile": profile.model_dump(mode="json"), "measured": found}
        rest = {"rows": [row._asdict() for row in rows], "failure": str(error) if error else None}
        print_json({**record, **rest})
    else:
        typer.echo(_reached(rows))
        if written is not None:
            typer.echo(_written(path, name))
    end_with(error)


def _from_runs(
    runs: list[MeasuredRun], gpu_name: str | None, base: str | None, output: Path | None, as_json: bool
) -> None:
    devices = sorted({run.device for run in runs})
    if len(devices) > 1:
        raise UserError(
            f"the runs are of different GPUs, {' and '.join(devices)}: calibrate each by its own runs",
            code="several_gpu_models",
        )
    sheet = _datasheet(devices[0], base)
    name = _name(gpu_name, sheet)
    path = output or _in_force(name)
    earlier = _earlier(path, sheet.name)
    before = calibrated(name, sheet, earlier)
    after = fit([run.observation for run in runs], before)
    profile = earlier.model_copy(
        update={
            "base": sheet.name,
            "efficiency": _efficiency(_changed(after, sheet), sheet),
            "measured_at": _now(),
            "measured_on": earlier.measured_on or devices[0],
            "measured_with": list(
                dict.fromkeys([*earlier.measured_with, *(f"steps of run {run.label}" for run in runs)])
            ),
        }
    )
    written, error = _write(path, profile)
    records = [_compared(run, before, after) for run in runs]
    if as_json:
        found = {"path": written, "name": name, "profile": profile.model_dump(mode="json"), "runs": records}
        print_json({**found, "failure": str(error) if error else None})
        end_with(error)
        return
    rows = [["RUN", "MEASURED", "PREDICTED BEFORE", "AND NOW"]]
    for record in records:
        measured = record["measured_seconds"]
        cells = [f"{record[when]:.4g} s ({record[when] / measured - 1:+.1%})" for when in ("before", "after")]
        rows.append([record["run"], f"{measured:.4g} s", *cells])
    typer.echo(aligned(rows))
    if written is not None:
        typer.echo(_written(path, name))
    end_with(error)


def _name(gpu_name: str | None, sheet: Device) -> str:
    """What the profile is called. Raises UserError for the name of another shipped GPU, whose place it would take."""
    if gpu_name is None:
        return sheet.name
    taken = shipped(gpu_name)
    if taken is not None and taken.name != sheet.name and taken.name.lower() == gpu_name.lower():
        raise UserError(
            f"--gpu-name {gpu_name}: this is of {sheet.name}, and every job planned for {taken.name} would use it: "
            f"choose another name, or add --base {taken.name} if it is one",
            code="gpu_name_taken",
        )
    return gpu_name


def _in_force(name: str) -> Path:
    """The profile of that name that jobs are planned with now; among a person's own where there is none yet."""
    return known_gpus().get(name) or user_folder() / f"{name}.yaml"


def _datasheet(device: str, base: str | None) -> Device:
    """The shipped device that was measured. Raises UserError when it is none."""
    sheet = shipped(base or device)
    if sheet is None:
        known = ", ".join(shipped_names())
        raise UserError(
            f"no datasheet of {base or device} is known: name the closest GPU with --base (known: {known})",
            code="unknown_datasheet",
        )
    on_cpu = device.casefold() == CPU
    if on_cpu and not sheet.is_cpu:
        raise UserError(
            f"the CPU is measured, but --base {sheet.name} is a GPU: leave out --base",
            code="datasheet_of_another_device",
        )
    if sheet.is_cpu and not on_cpu:
        raise UserError(
            f"what is measured is {device}, but --base is the CPU: name the closest GPU, or leave it out",
            code="datasheet_of_another_device",
        )
    return sheet


def _earlier(path: Path, base: str) -> GpuProfile:
    """The profile that is there, so that what was written by hand or measured before stays; else an empty one."""
    if not path.exists():
        return GpuProfile(base=base)
    profile = read_gpu(path)
    if profile.base != base:
        raise UserError(
            f"{path} is the profile of another GPU, {profile.base}: choose another name with --gpu-name",
            code="profile_of_another_gpu",
        )
    return profile


def _efficiency(values: Mapping[str, float], sheet: Device) -> MeasuredEfficiency:
    """Raises UserError where what was measured is so far from the datasheet that it is another device's."""
    try:
        return MeasuredEfficiency.model_validate(values)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise UserError(
            f"the measurements do not fit {sheet.name}: its efficiency.{name} would be {values[name]:.3g}; "
            "name the closest GPU with --base",
            code="efficiency_out_of_range",
        ) from error


def _changed(device: Device, sheet: Device) -> dict[str, float]:
    """Efficiencies that are not as shipped."""
    shipped_ones = asdict(sheet.efficiency)
    return {key: value for key, value in asdict(device.efficiency).items() if value != shipped_ones[key]}


def _compared(run: MeasuredRun, before: Device, after: Device) -> dict[str, Any]:
    seen = run.observation
    old, new = (
        estimate_with(seen.job, seen.padded_vocab, seen.kernels, device).step_seconds for device in (before, after)
    )
    return {"run": run.label, "measured_seconds": seen.seconds, "before": old, "after": new}


def _reached(rows: list[KernelEfficiency]) -> str:
    table = [["WHAT", "MEASURED", "DATASHEET", "REACHED"]]
    for row in rows:
        sheet = ["-", "-"]
        if row.datasheet is not None:
            sheet = [f"{row.datasheet:.4g} {row.unit}", f"{row.measured / row.datasheet:.0%}"]
        table.append([row.what, f"{row.measured:.3g} {row.unit}", *sheet])
    return aligned(table)


def _written(path: Path, name: str) -> str:
    return f"wrote {path}: jobs planned for {name} use it from now on."


def _write(path: Path, profile: GpuProfile) -> tuple[str | None, UserError | None]:
    """The path that was written, or the error: results are shown in both cases."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, profile_text(profile))
    except OSError as error:
        return None, UserError(f"{path} cannot be written: {error.strerror}", code="unwritable_file")
    return str(path), None


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
