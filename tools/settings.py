"""Prints docs/reference/settings.md: all settings, taken from the models that declare them.

python tools/settings.py > docs/reference/settings.md
"""

from collections.abc import Iterable

from fleet_env.settings.base import Knob, Settings, knobs
from fleet_env.settings.fleet import FleetConfig, FleetSettings, ReachConfig, RobotConfig
from fleet_policy.parameters import PolicySettings
from fleet_ros.link import LinkSettings
from lopinfer_node.parameters import ClientSettings
from lopinfer_node.parameters import ServerSettings as LopinferServer
from rog_ros.parameters import ServerSettings, WorkerSettings
from rrto_bridge.client.settings import Settings as Program
from rrto_bridge.server.parameters import ServerSettings as RrtoServer

HEAD = '''\
# Settings

Made by `python tools/settings.py > docs/reference/settings.md` from the models that declare them.

In a fleet file a setting is a key of its section; `--set` joins section and key by a dot. The ROS
parameter and the launch argument have the same dotted name, except that those of the sections
`training` and `network` have no prefix (`sync`, not `training.sync`). `rog fleet show NAME` prints
all settings of a fleet, a launch file prints its arguments with `--show-args`, and `ros2 param
describe` explains a parameter of a running node. The entry of a robot overrides the settings for
all robots.
'''

BOTH = 'fleet file and `--set`; parameter, where it has another name'


def table(title: str, text: str, found: Iterable[Knob], names: str = 'parameter') -> str:
    """Return one section: heading, text and table.

    ``names``: heading of the column for the name of the setting. If it is `BOTH`, the column
    shows the setting's name, and the parameter's name if that is different.
    """
    columns = [names, 'value', 'default', 'what it is']
    lines = [f'\n## {title}\n', *([f'{text}\n'] if text else []),
             f'| {" | ".join(columns)} |', '|' + '---|' * len(columns)]
    for knob in found:
        path = '.'.join(knob.path)
        called = f'`{knob.name}`' if path == knob.name or names != BOTH else \
            f'`{path}`, parameter `{knob.name}`'
        cells = [called, knob.allowed, knob.usual, knob.description]
        lines.append('| ' + ' | '.join(cell.replace('|', '\\|') for cell in cells) + ' |')
    return '\n'.join(lines) + '\n'


def beside(model: type[Settings], *others: type[Settings]) -> list[Knob]:
    """Return the settings of ``model`` that none of ``others`` declares in the same way."""
    known = [knob for other in others for knob in knobs(other)]
    return [knob for knob in knobs(model) if knob not in known]


def _listed(names: list[str]) -> str:
    return ', '.join(f'`{name}`' for name in names[:-1]) + f' and `{names[-1]}`'


def page() -> str:
    """Return the text of docs/reference/settings.md."""
    robots = beside(RobotConfig, FleetSettings)
    reach = list(ReachConfig.model_fields)
    again = [('upstream', key) for key in ('link', *reach)]
    return HEAD + ''.join([
        table('Fleets', f'And `upstream.link` as `link`, but without a trace; {_listed(reach)} of '
              '`upstream` as those of `network`.',
              (knob for knob in knobs(FleetSettings) if knob.path[:2] not in again), BOTH),
        table('Fleet files alone', 'And `robots`, a list of entries.',
              [k for k in beside(FleetConfig, FleetSettings) if k.name != 'robots'], 'key'),
        table("A robot's entry", 'And `link`, `power` and `stragglers` as above; '
              '`--set robots.NAME.KEY=VALUE` changes one.', robots, 'key'),
        table("Parameters of a robot's node alone", '',
              beside(WorkerSettings, FleetSettings, LinkSettings)),
        table('Parameters of the parameter server alone', '',
              beside(ServerSettings, FleetSettings, LinkSettings)),
        table('The link of a node', 'The same for the nodes of ROG (at the parameter server '
              '`ROBOT.link.trace` and so on), of LOPInfer, of a policy and of RRTO.',
              knobs(LinkSettings)),
        table('LOPInfer, robot', '',
              beside(ClientSettings, LinkSettings)),
        table('LOPInfer, server', 'As launch arguments, those that the robot has too begin with '
              '`server_`.', beside(LopinferServer, LinkSettings)),
        table("A policy's node", 'Also launch arguments of policy.launch.py.',
              beside(PolicySettings, LinkSettings)),
        table('RRTO, program', 'Options of `rrto run`, with dashes: `--on-loss`, `--link-rate`.',
              beside(Program, LinkSettings)),
        table('RRTO, server', '', beside(RrtoServer, LinkSettings))])


if __name__ == '__main__':
    print(page(), end='')
