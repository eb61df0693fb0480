"""One file for each family; `contract` says what one is, `candidates` holds what they share, `lookalikes` what is not
guessed.
"""
