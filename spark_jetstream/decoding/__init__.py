"""Payloads of a schema: JSON, Avro and Protobuf as columns of a frame, and columns as payloads."""
