"""Cross entropy over a vocabulary that may be split over tensor-parallel ranks."""
