"""The page at `/`: a chat with this daemon's models, in the browser, without requests to other servers."""
