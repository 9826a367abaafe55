"""One module per command: it chains the stages and shows what comes of them."""
