"""The guided debugging session: a ladder of short runs, from one device to the whole Plan."""
