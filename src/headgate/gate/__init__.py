"""Pass or wait, for sites and proxies: rules, traffic, passes, the waiting page and the dialects of proxies."""
