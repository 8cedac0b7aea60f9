"""The records of tensor expressions, their element types and their text."""
