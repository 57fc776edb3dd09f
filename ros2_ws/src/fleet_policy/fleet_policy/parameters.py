"""Parameters of the policy's node."""

from __future__ import annotations

from typing import Any, Literal

from fleet_env.settings.base import setting
from fleet_env.settings.fleet import DEVICE, AccessConfig
from fleet_models.settings import FollowSettings
from fleet_ros.link import LinkSettings
from fleet_ros.managed import ManagedSettings
from lopinfer_node.runtime.client import PrecisionSettings
from lopinfer_node.runtime.planner import LOSS, METHODS

from .core.config import CoreSettings


class PolicySettings(ManagedSettings, LinkSettings, FollowSettings, PrecisionSettings,
                     CoreSettings):
    """Settings of the policy's node."""

    security: AccessConfig = AccessConfig()
    policy: str = setting('', 'class of the policy', empty=True,
                          pattern=r'^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)?$',
                          form='package.module:Class')
    policy_options: dict[str, Any] = setting({}, 'keyword arguments of the policy; as a parameter '
                                                 'or an argument, a JSON object')
    contract: str = setting('', "file with the contract; empty: the one that the policy's class "
                                'names', empty=True)
    inference: Literal['alone', 'lopinfer', 'rrto'] = setting(
        'lopinfer', 'who computes beside the robot. alone: nobody; lopinfer: a server of LOPInfer, '
                    'or both together; rrto: the server of `rrto run`, in which the node runs')
    server: str = setting('/lopinfer', "namespace of LOPInfer's server; several, separated by "
                                       'commas: the fastest takes an inference')
    method: Literal[METHODS] = setting(  # type: ignore[valid-type]
        LOSS, "LOPInfer's method of planning")
    slowdown: float = setting(1.0, 'emulate a slower robot: factor on its computing time; 1: off',
                              ge=1.0, le=1000.0)
    device: str = setting('cpu', 'device of the robot that computes', **DEVICE)
    threads: int = setting(0, "computing threads; 0: PyTorch's default", ge=0, le=1024)
    first: float = setting(10.0, 'time in which the first message of each topic must come', 's',
                           gt=0.0, le=600.0)
