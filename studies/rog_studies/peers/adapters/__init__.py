"""One program per peer: what a user of that peer writes after its tutorial.

An adapter runs in the Python environment of its peer, where nothing of this suite is installed:

    python -m adapters.PEER --role server|robot --robot I --robots N --server ADDRESS
                            --folder RUN --minutes M --seed S [--again] [options of the peer]

It imports only the standard library, PyTorch, numpy, its peer and the `task` beside it. It trains
until it is ended by a signal: SIGTERM at the end of the run, SIGKILL where the scenario says so.
``--again`` tells a program that it was killed and started again.
"""
