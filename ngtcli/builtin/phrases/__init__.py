"""How the phrases that ship were made. Users never run it."""
