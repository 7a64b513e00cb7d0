"""Permits in this process: asked for, handed out, renewed, given back."""
