"""The built-in demonstration model: its files (`model/`), its data mixture and its training."""

from pathlib import Path

MODEL_DIR = Path(__file__).parent / "model"
