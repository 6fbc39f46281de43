"""A trained folder -> an export, a model card, a repository on the Hub."""
