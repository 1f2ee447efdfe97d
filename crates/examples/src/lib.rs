//! Nothing to call: the examples beside this are files to copy. The tests hold
//! them to the formats of those who read them.

#![forbid(unsafe_code)]
