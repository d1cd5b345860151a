"""Megatron-LM's flags and programs: their table, and those that the table does not translate."""
