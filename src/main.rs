//! The boot order.
fn main() {}
