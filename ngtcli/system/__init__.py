"""The process, its files, threads and compiled functions; nothing about models."""
