"""The species trend report: totals, indices, trends, their classes, the page and the exchange files."""
