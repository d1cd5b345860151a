"""What the commands of `sweep` share: starting cells, previews and tables."""
