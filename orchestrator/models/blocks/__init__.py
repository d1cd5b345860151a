"""The blocks of models, one folder each; docs/architecture.md describes their files."""
