"""Draft with a second, smaller model: run it, translate its guesses, weigh it against n-grams."""
