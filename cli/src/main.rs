//! overlane
fn main() {}
