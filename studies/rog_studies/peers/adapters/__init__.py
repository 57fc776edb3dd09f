"""One program for each peer, written as in the peer's tutorial.

An adapter runs in the Python environment of its peer, where nothing of this suite is
installed:

    python -m adapters.PEER --role server|robot --robot I --robots N --server ADDRESS
                            --folder RUN --minutes M --seed S [--again] [options of the peer]

The adapter imports only the standard library, PyTorch, numpy, its peer, the module `task`
of this package, and modules of this package that belong to the same peer. It trains until
a signal ends it: SIGTERM at the end of the run, or SIGKILL when the scenario kills a process.
``--again`` tells a program that it was killed and started again.
"""
