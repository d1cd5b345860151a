"""Rules of how a job's processes are laid out."""
