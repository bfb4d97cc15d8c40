"""The built-in demonstration model: its files in `model/`, how it was made in `training/`."""
