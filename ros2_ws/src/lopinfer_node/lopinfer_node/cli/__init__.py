"""The `lopinfer` command, one module for each verb."""
