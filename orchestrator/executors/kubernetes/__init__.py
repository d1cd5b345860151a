"""A job as a Kubernetes JobSet: the manifest, and the program that its pods run."""
