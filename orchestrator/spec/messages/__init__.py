"""Messages about mistakes in a spec: what is wrong where, and what was probably meant."""
