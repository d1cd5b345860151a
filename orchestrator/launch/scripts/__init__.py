"""Launch scripts and batch scripts, rendered from templates."""
