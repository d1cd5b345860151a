"""What models are made of, a folder for each block; docs/architecture.md says what its files are asked for."""
