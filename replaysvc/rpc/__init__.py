"""The gRPC door: converts, calls `replaysvc.replay`, converts back."""
