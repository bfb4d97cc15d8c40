"""The built-in demonstration model: its files (`model/`), its data mixture and its training."""
