"""The index of a table in RAM: its chunks and episodes, the links between them, and what they tell."""
