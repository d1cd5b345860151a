"""Reading files that others may have written: those of run directories, and of folders that a person names."""
