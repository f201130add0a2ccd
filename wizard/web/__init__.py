"""The screens in a browser, for those who have no terminal there."""
