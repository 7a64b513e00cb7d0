"""Permits in this process: requested, granted, renewed, given back."""
