"""Views of models that are not ours."""
