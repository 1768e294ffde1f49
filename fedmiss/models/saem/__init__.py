"""FL-SAEM: chains instead of an E-step in closed form (Karimi's weekly report of 2021)."""
