"""Megatron-LM's flags and programs: their table, and the flags that the table does not translate."""
