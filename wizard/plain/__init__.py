"""The wizard as questions and answers in lines: for screen readers, dumb terminals and pipes."""
