"""The files of an indexed data set: header, manifest and lock, and writing them."""
