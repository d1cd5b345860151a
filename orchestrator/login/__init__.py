"""Commands on a cluster's login node, typed on a machine without a scheduler: one connection, code sent and pinned."""
