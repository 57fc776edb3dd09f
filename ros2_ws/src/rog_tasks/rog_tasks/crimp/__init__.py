"""CRIMP: robots map one place together while each robot finds its own pose; see `docs/crimp.md`."""

from rog_tasks.crimp.task import Crimp

__all__ = ['Crimp']
