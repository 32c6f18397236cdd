"""An operator's tools for a store that no service has open: check it, repair it, restore it from a snapshot."""
