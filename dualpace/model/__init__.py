"""Weights, tokenizer and chat template, for the serving side and for preparation at build."""
