"""An expression as loop nests, and the passes that change them before they are scheduled."""
