"""A fleet of real nodes on one machine: emulated radio links, injected faults. Needs root."""
