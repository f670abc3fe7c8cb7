"""Values of a Key-Value bucket beside the rows of a frame that name their keys."""
