"""Raw input: text and JSON files, compressed or not, their documents and sentences, and images."""
