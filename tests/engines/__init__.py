"""What the engines that call the data source differ in."""
