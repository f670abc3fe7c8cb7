"""How far Spark has committed, kept on the server by consumers (option durable)."""
