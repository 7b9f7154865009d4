"""`make fuzz`: random files and random models, for as long as one likes; every case comes again from its number."""
