"""Bytes that nobody meant, for everything that reads what others wrote: `targets` says what must
hold for each.
"""
