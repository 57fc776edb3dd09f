"""The built-in fleets of ROG, and the launch descriptions of the suite."""

from pathlib import Path

FLEETS = Path(__file__).parent / 'fleets'
