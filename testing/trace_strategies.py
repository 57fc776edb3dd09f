"""Link traces for property tests."""

import numpy as np
from fleet_env.links.trace import LinkTrace
from hypothesis import strategies as st


@st.composite
def traces(draw):
    """Generate a trace of at most twelve steps; its rates are 0 or 0.01 to 300 Mbit/s."""
    n = draw(st.integers(1, 12))
    steps = draw(st.lists(st.floats(0.01, 5), min_size=n, max_size=n))
    rates = draw(st.lists(st.one_of(st.just(0.0), st.floats(0.01, 300)), min_size=n, max_size=n))
    ends = np.cumsum(steps)
    return LinkTrace(np.concatenate(([0.0], ends[:-1])), rates, float(ends[-1]))
