"""Files and Hub data sets -> rows of text -> views as token ids; and pairs of sentences with their scores."""
