"""The files of the web page that the management listener serves at `/`.

They are written by hand for the browser: no build makes them, and nothing in them comes from elsewhere. `static/` has
modules of JavaScript, each for one thing that is shown; `static/shell/` is what all of them stand on.
"""
