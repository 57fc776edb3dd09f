"""CRIMP: robots map one place together while each finds its pose; see `docs/howto/data.md`."""

from rog_tasks.crimp.task import Crimp

__all__ = ['Crimp']
