"""Code shared by the commands of `sweep`: starting cells, previews and tables."""
