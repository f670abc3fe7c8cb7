"""The least permissions, with each line left out."""
