"""Which events are worth telling somebody, and in which words. Pure: values in, values out."""
