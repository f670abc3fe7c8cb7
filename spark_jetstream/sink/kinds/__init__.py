"""The kinds of datasets that a write can store rows in: messages, keys and objects."""
