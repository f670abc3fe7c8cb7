"""Key-Value and Object Store buckets as they lie in their streams."""
