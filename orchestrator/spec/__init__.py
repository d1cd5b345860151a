"""The job spec: what a person writes, typed, checked and frozen."""
