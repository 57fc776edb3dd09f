"""The tables that a client makes for itself."""

import numpy as np
import pytest
import torch
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.plan import Plan
from lopinfer_node.runtime.measure import measure
from lopinfer_node.runtime.planner import TablePlanner
from runtime_models import Small


@pytest.mark.long
def test_without_a_profile_a_first_table_needs_no_search_and_a_searched_one_follows():
    traced = trace(Small().eval(), torch.rand(1, 3, 32, 40))
    graph = traced.graph
    server = np.full(len(graph), 1e-9)      # much faster than this machine
    first, final = TablePlanner()(traced, server, server)
    assert set(first.plans) <= {Plan.device_only(graph), Plan.server_only(graph)}
    assert first.plans[0] == Plan.device_only(graph)         # over a link that carries nothing
    assert len(final.plans) > len(first.plans)
    assert all(np.isfinite(e) for e in first.estimates)


def test_with_a_profile_there_is_one_table():
    traced = trace(Small().eval(), torch.rand(1, 3, 32, 40))
    costs = np.full(len(traced.graph), 1e-4)
    profile = measure(traced, 1, 0, (0.5, 1.0))
    assert len(list(TablePlanner('server-only', profile)(traced, costs, costs))) == 1
