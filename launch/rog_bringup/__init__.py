"""Fleets that ROG ships, and the launch description that starts one."""

from pathlib import Path

FLEETS = Path(__file__).parent / 'fleets'
