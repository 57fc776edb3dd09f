"""Studies that repeat the measurements of papers in virtual time. A robot does not need them."""
