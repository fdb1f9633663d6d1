"""The demo's own application: a shop that writes orders and a delivery service that reads them.

It runs in the demo's pods, so it may import nothing of the test tree around it and nothing of the product.
"""
