"""What happens around the steps: one concern a module, each a Callback."""
