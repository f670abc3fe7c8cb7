"""Reading a stream: offsets, planning on the driver, pulling on the executors."""
