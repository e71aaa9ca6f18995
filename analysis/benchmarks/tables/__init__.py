"""An outside judge for tables: tables that nobody chose, opponents by their defaults, and scores."""
