"""The systems that run jobs: a scheduler, or programs on this machine."""
