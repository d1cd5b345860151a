"""Derived from the declarations of all fields: legal keys, names, the JSON schema, a spec's hash, changes."""
