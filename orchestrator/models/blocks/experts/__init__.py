"""A mixture of experts in place of an MLP: a router, experts that are MLPs, and one that every token passes."""
