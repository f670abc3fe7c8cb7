"""How messages of a stream are read: by pull consumers, by Direct Get, one by one."""
