"""Files of an indexed data set: their header, manifest and lock, and how they are written."""
