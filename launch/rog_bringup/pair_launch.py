"""The launch description of a server and its robots, from the tables of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_ros.parameters import Knob
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch_ros.actions import Node

from launch import LaunchDescription
from rog_bringup.arguments import (
    PATIENCE,
    chosen,
    environment,
    names,
    network,
    parameter,
    robots_and_network,
    value,
)

_KEEP = ''         # an argument left empty keeps the parameter's default
_SHARED = 'link_'  # parameters of an emulated link are the same on both sides


@dataclass(frozen=True)
class Pair:
    """A package with a server node and a robot node."""

    package: str
    server: str
    robot: str
    server_knobs: Mapping[str, Knob]
    robot_knobs: Mapping[str, Knob]

    def argument(self, side: str, name: str) -> str:
        """Launch argument of a parameter; what both sides have is `server_...` on the server."""
        both = name in self.robot_knobs and name in self.server_knobs
        return f'server_{name}' if side == 'server' and both and not name.startswith(_SHARED) \
            else name


def pair_launch(pair: Pair) -> LaunchDescription:
    """Return the launch description: one server, and a node for each of `robots`."""
    texts = {pair.argument(side, name): knob.description
             for side, knobs in (('server', pair.server_knobs), ('robot', pair.robot_knobs))
             for name, knob in knobs.items()}
    arguments = [
        *robots_and_network(),
        *(DeclareLaunchArgument(name, default_value=_KEEP,
                                description=f'{text} Empty: the default.')
          for name, text in texts.items())]
    return LaunchDescription([*arguments, OpaqueFunction(function=_start, args=[pair])])


def _start(context: Any, pair: Pair) -> list[Any]:
    def node(side: str, namespace: str, knobs: Mapping[str, Knob]) -> Node:
        given = {name: value(context, pair.argument(side, name)) for name in knobs}
        parameters = {name: parameter(pair.argument(side, name), knobs[name], text)
                      for name, text in given.items() if text != _KEEP}
        return Node(package=pair.package, executable=getattr(pair, side), namespace=namespace,
                    output='screen', parameters=[parameters] if parameters else [],
                    sigterm_timeout=str(PATIENCE))

    return [*environment(network(context)),
            *(node('server', pair.robot_knobs['server'].default, pair.server_knobs)
              if name == 'server' else node('robot', name, pair.robot_knobs)
              for name in chosen(context, names(context, 'robots')))]
