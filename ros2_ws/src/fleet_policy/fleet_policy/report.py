"""The reports of the node: the values of `policy_status`, and the node's health (REP-107)."""

from __future__ import annotations

import math

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from fleet_models import Follower

from .core.machine import SAFE, STARVED, PolicyMachine

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


def values_of(machine: PolicyMachine, follower: Follower | None = None,
              sent: int | None = None) -> dict[str, float | str]:
    """Return the values for the diagnostics by name.

    Times are in seconds; an unknown value is NaN. ``follower``: of a policy that follows a fleet.
    ``sent``: bytes that were sent for the last inference that was shared.
    """
    counts, command = machine.counts, machine.command
    found: dict[str, float | str] = {
        'state': machine.state,
        'action age (s)': command.age,
        'computed by': command.place,
        'queue lasts (s)': machine.left,
        'ticks': counts['ticks'], 'starved ticks': counts['starved'],
        'stale ticks': counts['stale'], 'missed ticks': counts['missed'],
        'chunks': counts['chunks'], 'late chunks': counts['late'],
        'repeated chunks': counts['repeated']}
    for place in machine.places.values():
        found |= {f'{place.name} latency (s)': place.latency,
                  f'{place.name} requests': place.counts['requests'],
                  f'{place.name} lost': place.counts['lost']}
    if sent is not None:
        found['sent for an inference (B)'] = float(sent)
    if follower is not None:
        says = follower.says()
        found |= {f'model {key}': math.nan if value is None else value
                  for key, value in says.items()}
    return found


def diagnosis(machine: PolicyMachine, active: bool, name: str, robot: str, others: str = '',
              follower: Follower | None = None, sent: int | None = None) -> DiagnosticStatus:
    """Return the health of the node.

    The level is OK if the node is not ``active``. Otherwise it is ERROR in the states safe
    and starved. In the other states it is WARN if there are warnings, and OK if there are
    none. ``others``: a warning about other nodes that publish actions; '' if there is no
    such warning.
    """
    status = DiagnosticStatus(name=name, hardware_id=robot, level=OK, message='acts')
    warnings = [*filter(None, [others]), *machine.warnings]
    if not active:
        status.message = 'inactive'
    elif machine.state == SAFE:
        status.level, status.message = ERROR, f'safe state: {machine.reason}'
    elif machine.state == STARVED:
        status.level, status.message = ERROR, '; '.join(['starved: no action', *warnings])
    elif warnings:
        status.level, status.message = WARN, '; '.join(warnings)
    elif machine.state != 'running':
        status.message = 'waiting for the first actions'
    status.values = [
        KeyValue(key=key, value=f'{value:.6g}' if isinstance(value, float) else str(value))
        for key, value in values_of(machine, follower, sent).items()]
    return status
