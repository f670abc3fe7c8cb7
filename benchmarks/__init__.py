"""Measurements, each printed beside the references it is to be read against.

`make bench` runs all of them.
"""
