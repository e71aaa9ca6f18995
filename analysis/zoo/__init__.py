"""The zoo's entries: trained, checked against their references, recorded, and shown as cards."""
