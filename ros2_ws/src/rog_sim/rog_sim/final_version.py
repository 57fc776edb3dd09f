"""Writes the final model of a run in virtual time as a version, see `fleet_env.versions`."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from fleet_env.settings.fleet import FleetConfig
from fleet_env.versions import MODELS, Version, Versions
from fleet_env.weights import state_bytes


def write_final_version(out: Path, fleet: FleetConfig, model: torch.nn.Module, iteration: int,
                        accuracy: float) -> Version:
    """Write the version into the folder of the run.

    :param iteration: iteration of the fastest robot.
    :param accuracy: the task's metric of ``model``; NaN: unknown.
    :raises VersionError: the version cannot be written.
    """
    return Versions(out / MODELS).write(
        state_bytes(model), run=out.absolute().name, fleet=fleet.name, method=fleet.training.sync,
        iteration=iteration, time=time.strftime('%Y-%m-%dT%H:%M:%S%z'), accuracy=accuracy,
        task=fleet.training.task, measured_on="the server's model", measured_by='rog sim')
