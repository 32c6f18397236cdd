"""The admin door: a dashboard, the API behind it, metrics and probes, over HTTP. Off unless `admin_port` is given."""
