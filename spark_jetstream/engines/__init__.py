"""The engines that call the data source: the form of their schemas, batches and tasks."""
