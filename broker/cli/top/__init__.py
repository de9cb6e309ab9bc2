"""The command `leveret top`: live figures of a broker in a terminal.

`model` holds what is shown and what the next question to the management API is; `fetch` asks it, in a thread; `app`
draws the lines that the pure modules make, and passes keys to the model.
"""
