"""The connector on the older Sparks that it supports."""
