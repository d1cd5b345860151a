"""The processes of a launch: finding, stopping, and ending them with their parent."""
