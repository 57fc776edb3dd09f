"""Settings of a fleet: their declaration, the schema, and fleet files."""
