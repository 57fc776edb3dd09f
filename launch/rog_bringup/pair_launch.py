"""The launch description of a server and its robots, made from the classes of their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet_env.settings.base import Settings, Text, arguments
from launch_ros.actions import Node

from launch import LaunchDescription
from rog_bringup.arguments import (
    chosen,
    declared,
    described,
    environment,
    given,
    given_parameters,
    names,
    network,
    robots_and_network,
)
from rog_bringup.ending import TIMES, Ending

_SHARED = ('link.', 'link_epoch', 'security.')  # prefixes of parameters with one argument


@dataclass(frozen=True)
class Pair:
    """A package with a server node and a robot node."""

    package: str
    server: str
    robot: str
    server_settings: type[Settings]
    robot_settings: type[Settings]

    def arguments(self, side: str) -> dict[str, str]:
        """Return parameter -> launch argument of one side, ``server`` or ``robot``.

        If both sides have a parameter, the server's argument is called ``server_...``; the
        parameters of the link and of the key have one argument for both sides.
        """
        robots = arguments(self.robot_settings)
        if side == 'robot':
            return {name: name for name in robots}
        return {name: f'server_{name}' if name in robots and not name.startswith(_SHARED) else name
                for name in arguments(self.server_settings)}

    def declared(self) -> list[Any]:
        """Return the declarations of the arguments of both sides.

        The declarations of `robots_and_network` are included.
        """
        texts: dict[str, str] = {}
        for side, model in (('server', self.server_settings), ('robot', self.robot_settings)):
            described = arguments(model)
            texts |= {argument: described[name] for name, argument in self.arguments(side).items()}
        return [*robots_and_network(), *declared(texts)]

    def given(self, context: Any, side: str) -> dict[str, Text]:
        """Return parameter -> value, for each argument that the user has given.

        ``side``: the node that has the parameters, ``server`` or ``robot``.
        """
        names = self.arguments(side)
        texts = given(context, names.values())
        return {name: texts[argument] for name, argument in names.items() if argument in texts}


def pair_launch(pair: Pair) -> LaunchDescription:
    """Return the launch description: one server, and a node for each name in `robots`."""
    return described(pair.declared(), _start, pair)


def _start(context: Any, pair: Pair) -> list[Any]:
    reach = network(context)
    place = reach.namespace + pair.robot_settings.model_fields['server'].default

    def node(side: str, namespace: str, model: type[Settings]) -> Node:
        values = pair.given(context, side)
        if side == 'robot':
            values.setdefault('server', Text(place))
        return Node(package=pair.package, executable=getattr(pair, side), namespace=namespace,
                    output='screen', parameters=given_parameters(model, values), **TIMES)

    here = chosen(context, names(context, 'robots'))
    server = node('server', place, pair.server_settings) if 'server' in here else None
    robots = [node('robot', f'{reach.namespace}/{name}', pair.robot_settings)
              for name in here if name != 'server']
    return [*environment(reach), *Ending(server, robots, run=False).actions(),
            *([server] if server else []), *robots]
