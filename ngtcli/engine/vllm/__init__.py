"""Drafts for engines that decode by themselves."""
