"""The pages: complete HTML without scripts, rendered by Jinja; scripts make them live. No JSON here."""
