"""A job as a JobSet of Kubernetes: the manifest, and the program that its pods run."""
