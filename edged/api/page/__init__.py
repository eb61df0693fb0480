"""The page that shows a box in a browser."""
