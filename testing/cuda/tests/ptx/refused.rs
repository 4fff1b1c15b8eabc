//! What the interpreter refuses, each with its words.
