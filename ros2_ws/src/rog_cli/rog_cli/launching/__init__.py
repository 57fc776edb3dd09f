"""The processes of a fleet: how they are started, watched and ended."""
