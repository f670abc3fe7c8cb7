"""The kinds of datasets that a query can read, one class each."""
