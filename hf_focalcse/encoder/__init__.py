"""Text -> vectors."""
