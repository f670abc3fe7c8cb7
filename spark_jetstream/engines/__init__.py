"""The engines that call the data source: how each gives and takes schemas, and numbers its tasks."""
