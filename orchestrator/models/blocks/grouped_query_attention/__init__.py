"""Grouped-query attention: multi-head if each query head has its own keys and values, multi-query with one."""
