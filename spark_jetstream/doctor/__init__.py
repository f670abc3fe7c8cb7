"""What `spark-jetstream doctor` looks at. Each module gives findings and changes nothing, neither here nor there."""
