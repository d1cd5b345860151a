"""Commands on a cluster's login node, from a machine that has no scheduler: one connection, code sent and pinned."""
