"""The `rrto` command, one module for each verb."""
