"""Where the log of events is kept: SQLite or PostgreSQL, one schema."""
