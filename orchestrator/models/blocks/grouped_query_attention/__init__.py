"""Grouped-query attention: multi-head where each query head has keys and values of its own, multi-query with one."""
