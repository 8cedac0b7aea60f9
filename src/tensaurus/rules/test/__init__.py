"""Rules tested on instances: types, attributes and elements drawn where laws break."""
