"""From a request to columns: which items there are, drawing them, where their windows lie, and gathering what is there."""
