"""Reading files that others may have written: in run directories, and in folders that a person names."""
