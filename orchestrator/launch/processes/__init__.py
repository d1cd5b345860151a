"""The processes of a launch: finding and stopping them, and ending them with their parent."""
