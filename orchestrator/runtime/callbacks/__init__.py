"""Work around the steps: one concern per module, each a Callback."""
