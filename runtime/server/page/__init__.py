"""The page at `/`: a chat with the models of this daemon, in the browser, asking nobody else for anything."""
