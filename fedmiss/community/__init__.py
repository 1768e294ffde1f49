"""All species of a site together: the low rank over sites and species."""
