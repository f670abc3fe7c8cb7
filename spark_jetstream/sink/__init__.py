"""Rows to JetStream: frames in bulk, acknowledgements in bulk, and what each delivery level promises."""
