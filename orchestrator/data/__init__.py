"""Text to indexed data sets (`python -m orchestrator.data`), and light readers of what they hold."""
