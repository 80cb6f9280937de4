"""Gangs of operators as they really are: each runs beside the API server, and makes its pods itself."""
